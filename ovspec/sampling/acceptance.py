"""Acceptance rules of speculative decoding: which draft tokens are accepted, and which token follows.

Notation and rule of Leviathan et al. 2023 (arXiv 2211.17192), also in Chen et al. 2023 (arXiv 2302.01318):
draft tokens x_1 .. x_k are drawn from q_1 .. q_k, the target gives p_1 .. p_{k+1}, and the output is
distributed exactly as if each token had been drawn from p.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass

import numpy as np

from ovspec.sampling.sampling import Distribution


@dataclass(frozen=True, slots=True)
class Accepted:
    """Outcome of one verification: the first `n` draft tokens are accepted, and `next_token` follows them.

    Attributes:
        n: number of accepted draft tokens, 0 to k.
        next_token: the correction at the first rejected position, or the bonus token after k accepted ones.
    """

    n: int
    next_token: int


class RandomStreams:
    """The random numbers of one sequence, as three independent streams.

    The streams are independent: a drafter that draws more numbers, or none, does not change the uniforms of
    the acceptance tests.

    Attributes:
        draft: for drawing draft tokens from q.
        accept: for the acceptance tests u < p/q.
        residual: for drawing the correction or the bonus token.

    Raises:
        ValueError: `seed` or `sequence_index` is negative.
    """

    __slots__ = ("accept", "draft", "residual")

    def __init__(self, seed: int, sequence_index: int = 0) -> None:
        for name, value in (("seed", seed), ("sequence_index", sequence_index)):
            if value < 0:
                raise ValueError(f"{name} must be >= 0, got {value}; choose a non-negative integer")
        root = np.random.SeedSequence(seed, spawn_key=(sequence_index,))
        self.draft, self.accept, self.residual = (
            np.random.Generator(np.random.PCG64(child)) for child in root.spawn(3)
        )


def greedy_accept(draft_tokens: Sequence[int], target_argmax: Iterable[int]) -> Accepted:
    """Accept draft tokens as long as each is the target's own choice.

    Args:
        draft_tokens: x_1 .. x_k; k may be 0.
        target_argmax: the k + 1 most probable tokens under p_1 .. p_{k+1}. An iterator is read only as far as
            needed.

    Raises:
        ValueError: `target_argmax` does not have k + 1 entries.
    """
    k = len(draft_tokens)
    if isinstance(target_argmax, Sized) and len(target_argmax) != k + 1:
        raise ValueError(
            f"target_argmax must have {k + 1} entries for {k} draft tokens, got {len(target_argmax)}; "
            "pass one per draft token and one for the bonus token"
        )
    for i, token in enumerate(target_argmax):
        if i == k or token != draft_tokens[i]:
            return Accepted(i, int(token))
    raise ValueError(
        f"target_argmax must have {k + 1} entries for {k} draft tokens, but ended early; "
        "pass one per draft token and one for the bonus token"
    )


def lenient_accept(
    draft_tokens: Sequence[int],
    target_choice: Iterable[int],
    ratio: Callable[[int], float],
    threshold: float,
) -> Accepted:
    """Accept draft tokens while each is the target's own choice or nearly as probable. Lossy.

    The lenience of Leviathan et al., appendix A.5.

    Args:
        draft_tokens: x_1 .. x_k; k may be 0.
        target_choice: the k + 1 tokens that the target chooses; an iterator is read only as far as needed.
        ratio: `ratio(i)` is the target's probability of x_{i+1}, divided by that of its most probable token
            in greedy decoding, and by the drafter's probability in sampling.
        threshold: t, the smallest ratio that is accepted.
    """
    for i, token in enumerate(target_choice):
        if i == len(draft_tokens) or (token != draft_tokens[i] and ratio(i) < threshold):
            return Accepted(i, int(token))
    raise ValueError(
        f"target_choice must have {len(draft_tokens) + 1} entries for {len(draft_tokens)} draft tokens, but "
        "ended early; pass one per draft token and one for the bonus token"
    )


def speculative_sample(
    draft_tokens: Sequence[int],
    q: Sequence[Distribution | None] | None,
    p: Callable[[int], Distribution],
    streams: RandomStreams,
    threshold: float = 1.0,
) -> Accepted:
    """Accept x_i with probability min(1, p_i(x_i) / q_i(x_i)), in turn, until one is rejected.

    A rejected token is replaced by a draw from norm(max(0, p_i - q_i)), the residual distribution; after k
    accepted tokens the bonus token is drawn from p_{k+1}.

    Args:
        draft_tokens: x_1 .. x_k; k may be 0. Each must be drawn from its q, with numbers that are independent
            of `streams.accept` and `streams.residual`.
        q: q_1 .. q_k. None, for one position or for all, is a proposal without probabilities: q is then
            one-hot at x_i, which is exact however x_i was chosen.
        p: `p(i)` is p_{i+1}, for i from 0 to k. Called in order, once each, not past the first rejection.
        streams: random numbers. A call uses one uniform of `accept` per tested token and one of `residual`.
        threshold: t. Tokens with p/q >= t are accepted without a test. 1.0 is the exact rule, which always
            accepts these tokens; a lower value is lossy.

    Raises:
        ValueError: `q` does not have k entries, or gives zero to a token that was drawn from it.
    """
    k = len(draft_tokens)
    if q is not None and len(q) != k:
        raise ValueError(
            f"q must have one entry for each of {k} draft tokens, got {len(q)}; pass all of them"
        )
    for i in range(k):
        x = int(draft_tokens[i])
        reported = None if q is None else q[i]
        q_i = Distribution.one_hot(x) if reported is None else reported
        q_x = q_i.prob(x)
        if q_x <= 0:
            raise ValueError(
                f"draft_tokens[{i}] = {x} has probability 0 under q[{i}]; "
                "the drafter must return the distribution that it drew the token from"
            )
        p_i = p(i)
        # u < p/q without the division; u < 1, so equal p and q never reject.
        p_x = p_i.prob(x)
        if streams.accept.random() * q_x < p_x or (threshold < 1.0 and p_x >= threshold * q_x):
            continue
        # No residual mass means p <= q everywhere. Both sum to 1, so they differ by rounding only, and this
        # rejection had at most the probability of that rounding error. A draw from p is then exact enough.
        correction = p_i.residual(q_i)
        return Accepted(i, (p_i if correction is None else correction).sample(streams.residual.random()))
    return Accepted(k, p(k).sample(streams.residual.random()))
