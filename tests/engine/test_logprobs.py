"""Log probabilities: those of a sort of the whole row, and numbers that JSON has."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ovspec.engine.requests.token_logprobs import token_logprobs


@pytest.mark.parametrize("seed", range(40))
def test_the_best_are_those_of_a_stable_sort(seed: int) -> None:
    """Many equal logits, some that only float32 tells apart, and some that can't come."""
    rng = np.random.default_rng(seed)
    logits = rng.integers(-4, 4, int(rng.integers(1, 300))).astype(np.float32)
    logits *= np.float32(rng.choice([1, 1e-16, 1e-30]))
    logits[rng.integers(0, logits.size, logits.size // 3)] = -np.inf
    logits[-1] = 1
    shifted = logits.astype(np.float64) - logits.max()
    logprobs = np.maximum(shifted - np.log(np.exp(shifted).sum()), -9999.0)
    for top in (0, 1, 7, 400):
        found = token_logprobs(logits, 0, top)
        order = np.argsort(-logprobs, kind="stable")[:top].tolist()
        assert found.top == tuple((token, logprobs[token]) for token in order)
        assert found.logprob == logprobs[0]
        json.dumps([found.logprob, found.top], allow_nan=False)
