"""Acceptance rules of speculative decoding: which draft tokens are accepted, and which token follows.

Notation of Leviathan et al. 2023 (arXiv 2211.17192): the drafter proposes x_1 .. x_k, the target gives
p_1 .. p_{k+1}. The target's own tokens are the most probable ones in greedy decoding, and draws with the
random numbers of their positions (`coupling.py`) in sampling. These draws take the place of residual
resampling: the output is distributed exactly as if each token had been drawn from p, and a seed gives one
text whatever is drafted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Accepted:
    """Outcome of one verification: the first `n` draft tokens are accepted, and `next_token` follows them.

    Attributes:
        n: number of accepted draft tokens, 0 to k.
        next_token: the correction at the first rejected position, or the bonus token after k accepted ones.
    """

    n: int
    next_token: int


def accept_draft(
    draft_tokens: Sequence[int],
    target_choice: Iterable[int],
    ratio: Callable[[int], float] | None = None,
    threshold: float = 1.0,
) -> Accepted:
    """Accept draft tokens as long as each is the target's own choice, or, with a ratio, nearly as probable.

    With a ratio it is lossy: the lenience of Leviathan et al., appendix A.5.

    Args:
        draft_tokens: x_1 .. x_k; k may be 0.
        target_choice: the target's own k + 1 tokens; an iterator is read only as far as needed.
        ratio: `ratio(i)` is the target's probability of x_{i+1}, divided by that of its most probable token
            in greedy decoding, and by the drafter's probability in sampling.
        threshold: t, the smallest ratio that is accepted.

    Raises:
        ValueError: `target_choice` ends too early.
    """
    k = len(draft_tokens)
    for i, token in enumerate(target_choice):
        if i == k or (token != draft_tokens[i] and (ratio is None or ratio(i) < threshold)):
            return Accepted(i, int(token))
    raise ValueError(
        f"target_choice must have {k + 1} entries for {k} draft tokens, but ended early; "
        "pass one per draft token and one for the bonus token"
    )
