"""`LLMPipeline.verify` set between calls: as a pipeline that was made with it, without another model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from prompts import STORY
from settings import F32

import ovspec
from ovspec import CommitVerify, LLMPipeline, SparseVerify
from ovspec.modes.verify_mode import VerifyMode
from ovspec.pipeline.models import assistant_model

TIGHT, WIDE = SparseVerify(budget=64), SparseVerify(budget=256)
MODES: list[VerifyMode] = [WIDE, "dense", CommitVerify(TIGHT), SparseVerify(coverage=0.6), TIGHT]


def outcome(pipeline: LLMPipeline) -> tuple[str, float, float]:
    results = pipeline.generate([STORY], max_new_tokens=12, num_assistant_tokens=4)
    metrics = results.perf_metrics
    return results.texts[0], metrics.get_mean_acceptance_length(), metrics.get_attention_density()


@pytest.mark.slow
@pytest.mark.parametrize("reads_all", [False, True])
def test_as_if_made_with_it(demo_ir: Path, monkeypatch: pytest.MonkeyPatch, reads_all: bool) -> None:
    monkeypatch.setattr(assistant_model, "reads_all", lambda model: reads_all)
    draft = ovspec.draft_model(demo_ir / "draft")
    pipeline = LLMPipeline(demo_ir, "CPU", draft_model=draft, drafter="assistant", verify=TIGHT, **F32)
    runner = pipeline.runner
    first = outcome(pipeline)
    for mode in MODES:
        pipeline.verify = mode
        # The acceptance length shows the draft model, which reads all, or as much as the target may.
        assert outcome(pipeline) == outcome(
            LLMPipeline(demo_ir, "CPU", draft_model=draft, drafter="assistant", verify=mode, **F32)
        )
    assert outcome(pipeline) == first
    assert pipeline.runner is runner and pipeline.drafts


def test_what_the_graph_can_not_do_is_refused(make_pipeline: Callable[..., LLMPipeline]) -> None:
    dense = make_pipeline()
    for mode in (TIGHT, CommitVerify(TIGHT)):
        with pytest.raises(
            ValueError, match="this pipeline's graph selects nothing; make another LLMPipeline"
        ):
            dense.verify = mode
    assert dense.verify == "dense" and not dense.drafts
    sparse = make_pipeline(verify=TIGHT)
    with pytest.raises(ValueError, match=r"anchor_layers=\[0, 3\]: with rule='mass' every layer selects"):
        sparse.verify = SparseVerify(budget=64, anchor_layers=(0, 3))
    with pytest.raises(ValueError, match="verify='sparser': expected"):
        sparse.verify = "sparser"
    assert isinstance(sparse.verify, SparseVerify) and sparse.verify.budget == 64
