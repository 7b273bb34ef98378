"""Log probabilities of a token, and of the most probable ones beside it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ovspec.engine.requests.request import TokenLogprobs

#: What OpenAI gives for a token that can't come.
LEAST_LOGPROB = -9999.0


def token_logprobs(logits: NDArray[np.float32], token: int, top: int) -> TokenLogprobs:
    """Log probabilities of one row of logits f32 `[vocab]`; of equal ones the lower id comes first."""
    logprobs = logits.astype(np.float64)
    logprobs -= logits.max()
    logprobs -= np.log(np.exp(logprobs).sum())
    best: list[int] = []
    if top:
        # To sort the whole row took 13 to 16 ms of 151,936 logits. The last of the best is found in float32;
        # log probabilities may be equal where logits are not.
        place = max(0, logits.size - top)
        least = logprobs[np.argpartition(logits, place)[place]]
        found = np.flatnonzero(logprobs >= least)
        best = found[np.argsort(-logprobs[found], kind="stable")][:top].tolist()
    named = tuple((best_, _finite(logprobs[best_])) for best_ in best)
    rank = 1 + int(np.count_nonzero(logprobs > logprobs[token]))
    return TokenLogprobs(_finite(logprobs[token]), named, rank)


def _finite(logprob: np.float64) -> float:
    """JSON has no infinite numbers."""
    return max(float(logprob), LEAST_LOGPROB)
