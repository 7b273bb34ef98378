"""Where all of the context is read, sparse modes are dense: nothing to confirm, no drafts of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from settings import F32

import ovspec
from ovspec.generation.results import DecodedResults

SHORT, LONG = "The river bends here. " * 4, "The river bends here. " * 60
BUDGET = ovspec.SparseVerify(L0=128)


def answer(pipe: ovspec.LLMPipeline, prompt: str, **settings: Any) -> DecodedResults:
    return pipe.generate([prompt], max_new_tokens=24, ignore_eos=True, **settings)


@pytest.mark.slow
def test_a_commit_has_nothing_to_confirm(make_pipeline: Callable[..., ovspec.LLMPipeline]) -> None:
    plain = make_pipeline()
    budget, default = make_pipeline(verify=ovspec.CommitVerify(BUDGET)), make_pipeline(verify="commit")
    for prompt, pipe in ((SHORT, budget), (SHORT, default), (LONG, default)):
        found = answer(pipe, prompt)
        assert found.perf_metrics.get_num_commits() == 0
        assert found.perf_metrics.get_attention_density() == 1.0
        assert found.texts == answer(plain, prompt).texts
    long = answer(make_pipeline(verify=ovspec.CommitVerify(BUDGET, 4)), LONG)
    assert long.perf_metrics.get_num_commits() > 0


def test_sparse_self_drafts_nothing(demo_ir: Path, make_pipeline: Callable[..., ovspec.LLMPipeline]) -> None:
    pipe = ovspec.LLMPipeline(demo_ir, "CPU", drafter=ovspec.drafters.SparseSelf(BUDGET), **F32)
    for prompt, drafts in ((SHORT, False), (LONG, True)):
        texts = answer(make_pipeline(), prompt).texts
        fixed, scheduled = answer(pipe, prompt, num_assistant_tokens=4), answer(pipe, prompt)
        assert fixed.texts == scheduled.texts == texts
        assert bool(fixed.perf_metrics.raw_metrics.proposed_lengths) == drafts
        assert drafts or not scheduled.perf_metrics.raw_metrics.proposed_lengths
