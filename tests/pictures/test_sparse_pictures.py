"""Sparse verification over thousands of rows of pictures: it reads less, and committed it changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from settings import F32
from tiny_pictures import shapes

import ovspec

pytestmark = pytest.mark.slow
COUNT = 16
SPARSE = ovspec.SparseVerify(L0=256, rho=0.1)


@pytest.fixture(scope="module")
def folder(visual_family: Callable[[str], Path]) -> Path:
    return visual_family("Qwen2.5-VL")


@pytest.fixture(scope="module")
def answer(folder: Path) -> Callable[..., Any]:
    """Answers about 16 pictures of 256 rows each, with drafts of four tokens from a lookup."""
    pictures = [shapes(448, 448, seed) for seed in range(COUNT)]

    def answered(**options: Any) -> Any:
        pipeline = ovspec.VLMPipeline(folder, "CPU", **options, **F32)
        drafts = {} if options["drafter"] == "none" else {"num_assistant_tokens": 4}
        return pipeline.generate(
            "Which is which, and which is which?", pictures, max_new_tokens=32, ignore_eos=True, **drafts
        )

    return answered


def test_committed_texts_are_those_of_plain_decoding(answer: Callable[..., Any]) -> None:
    plain = answer(drafter="none")
    assert plain.perf_metrics.get_num_input_tokens() > 4096
    committed = answer(drafter="suffix", verify=ovspec.CommitVerify(SPARSE, interval=8))
    assert committed.texts == plain.texts
    sparse = answer(drafter="suffix", verify=SPARSE)
    assert sparse.perf_metrics.get_attention_density() < 0.5
    read = answer(drafter="none", prefill=ovspec.SparsePrefill())
    assert read.perf_metrics.get_prefill_density() < 1.0
