"""Divergence of two distributions and of two token sequences, as pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ovspec.sampling.sampling import greedy_token


@dataclass(frozen=True, slots=True)
class Decision:
    """One greedy decision of the dense model and of another, at the same position.

    Attributes:
        kl: KL(dense || other) over the vocabulary, nats.
        agrees: whether both choose the same token.
        margin: log-probability of dense's first choice less that of its second, nats.
        surprise: -log-probability that the other gives the token that follows, nats.
        dense_surprise: the same of the dense model.
    """

    kl: float
    agrees: bool
    margin: float
    surprise: float = 0.0
    dense_surprise: float = 0.0


def decide(dense: NDArray[np.float32], other: NDArray[np.float32], token: int | None = None) -> Decision:
    """Compare two rows of logits `[vocab]` of one position, which `token` follows."""
    agrees = greedy_token(dense) == greedy_token(other)
    log_p, log_q = log_softmax(dense), log_softmax(other)
    surprises = (0.0, 0.0) if token is None else (-float(log_q[token]), -float(log_p[token]))
    return Decision(kl_divergence(log_p, log_q), agrees, margin(dense), *surprises)


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Log-probabilities f64 of logits `[vocab]`; -inf stays -inf."""
    shifted = logits.astype(np.float64) - float(logits.max())
    normalised: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return normalised


def kl_divergence(log_p: NDArray[np.float64], log_q: NDArray[np.float64]) -> float:
    """KL(p || q) = sum of p (log p - log q), nats; infinite if q is 0 where p is not."""
    support = log_p > -np.inf
    log_p, log_q = log_p[support], log_q[support]
    # KL is not negative, but the rounded sum may be.
    return max(0.0, float(np.sum(np.exp(log_p) * (log_p - log_q))))


def margin(logits: NDArray[np.float32]) -> float:
    """Log-probability of the first choice less that of the second, nats; infinite for a single choice."""
    if logits.size < 2:
        return np.inf
    second, first = np.partition(logits, -2)[-2:].astype(np.float64)
    return float(first - second)


def first_divergence(reference: Sequence[int], tokens: Sequence[int]) -> int | None:
    """Index of the first token that differs or that only one has; `None` if they are equal."""
    for index, (expected, token) in enumerate(zip(reference, tokens, strict=False)):
        if expected != token:
            return index
    shorter = min(len(reference), len(tokens))
    return None if len(reference) == len(tokens) else shorter
