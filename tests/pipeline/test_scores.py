"""Scores of results are sums of log probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
import pytest
from prompts import PROMPTS

import ovspec
from ovspec.eval.scoring import Scorer
from ovspec.generation.inputs import tokenized

Make = Callable[..., ovspec.LLMPipeline]


@pytest.mark.parametrize(
    "sampling", [{}, {"do_sample": True, "temperature": 0.5, "rng_seed": 4}], ids=["greedy", "sampled"]
)
def test_scores_are_those_of_a_pass_over_the_text(make_pipeline: Make, sampling: dict[str, Any]) -> None:
    """Accepted drafts count as the target's own tokens do."""
    pipeline = make_pipeline(draft=True)
    prompt = tokenized(pipeline.get_tokenizer(), PROMPTS[0], special_tokens=True)
    given = ov.Tensor(np.array([prompt]))
    found = pipeline.generate(
        given, max_new_tokens=40, ignore_eos=True, logprobs=1, num_assistant_tokens=4, **sampling
    )
    assert found.perf_metrics.get_num_accepted_tokens() > 0
    assert found.scores[0] == pytest.approx(Scorer(pipeline).score(prompt, found.tokens[0])[0], abs=1e-3)
    assert pipeline.generate(given, max_new_tokens=4, **sampling).scores == [0.0]
