"""Where all of the context is read, sparse modes are dense: nothing to confirm, no drafts of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from settings import F32

import ovspec
from ovspec.generation.results import DecodedResults

SHORT, LONG = "The river bends here. " * 4, "The river bends here. " * 60
BUDGET = ovspec.SparseVerify(L0=128)


def answer(demo_ir: Path, prompt: str, way: dict[str, Any], **settings: Any) -> DecodedResults:
    pipe = ovspec.LLMPipeline(demo_ir, "CPU", **{"drafter": "none", **way}, **F32)
    return pipe.generate([prompt], max_new_tokens=24, ignore_eos=True, **settings)


def test_a_commit_has_nothing_to_confirm(demo_ir: Path) -> None:
    for prompt, verify in ((SHORT, ovspec.CommitVerify(BUDGET)), (SHORT, "commit"), (LONG, "commit")):
        found = answer(demo_ir, prompt, {"verify": verify})
        assert found.perf_metrics.get_num_commits() == 0
        assert found.perf_metrics.get_attention_density() == 1.0
        assert found.texts == answer(demo_ir, prompt, {}).texts
    long = answer(demo_ir, LONG, {"verify": ovspec.CommitVerify(BUDGET, 4)})
    assert long.perf_metrics.get_num_commits() > 0


def test_sparse_self_drafts_nothing(demo_ir: Path) -> None:
    way, settings = {"drafter": ovspec.drafters.SparseSelf(BUDGET)}, {"num_assistant_tokens": 4}
    for prompt, drafts in ((SHORT, False), (LONG, True)):
        for given in (settings, {}):
            found = answer(demo_ir, prompt, way, **given)
            assert found.texts == answer(demo_ir, prompt, {}).texts
            assert drafts or not found.perf_metrics.raw_metrics.proposed_lengths
        fixed = answer(demo_ir, prompt, way, **settings)
        assert bool(fixed.perf_metrics.raw_metrics.proposed_lengths) == drafts
