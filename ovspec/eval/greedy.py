"""Greedy answers of the pipelines that an evaluation compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov

from ovspec.generation.results import EncodedResults
from ovspec.pipeline.pipeline import LLMPipeline

_WARM_UP_TOKENS = 8
# The drafting option that accepts tokens which the model would not choose.
_LOSSY_OPTION = "acceptance_threshold"


def greedy(
    pipeline: LLMPipeline,
    ids: Sequence[int],
    max_new_tokens: int,
    drafting: Mapping[str, Any],
    lossy: bool = False,
) -> EncodedResults:
    """Answer a prompt of token ids.

    Args:
        drafting: fields of the generation configuration for the drafter, if there is one.
        lossy: whether a draft token may be accepted that the model would not choose.
    """
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": max_new_tokens}
    if pipeline.drafts:
        options |= {name: value for name, value in drafting.items() if lossy or name != _LOSSY_OPTION}
    results = pipeline.generate(ov.Tensor(np.array([ids], np.int64)), **options)
    assert isinstance(results, EncodedResults)
    return results


def warm_up(pipeline: LLMPipeline, ids: Sequence[int], drafting: Mapping[str, Any]) -> None:
    """Answer shortly: kernels are built and weights are packed on first use."""
    greedy(pipeline, ids, _WARM_UP_TOKENS, drafting)
