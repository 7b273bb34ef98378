"""Block verification (arXiv 2403.10444, Algorithm 2): a draft is judged as a whole, and more of it stands.

A draft x_1 .. x_k was drawn from q_1 .. q_k (M_s in the paper), the target gives p_1 .. p_{k+1} (M_b). The
output follows the target's law, as with coupled draws; but the random numbers belong to the draft and not to
positions, so a seed names a text only together with its drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ovspec.sampling.acceptance import Accepted
from ovspec.sampling.sampling import Distribution

Laws = Sequence[NDArray[np.float64]] | NDArray[np.float64]


def block_stops(p: Laws, q: Laws, draft_tokens: Sequence[int]) -> tuple[list[float], list[float]]:
    """What block verification computes of a draft.

    Args:
        p: of the target, float64 `[vocab]` after the tokens before each of the draft; more are not read.
        q: of the drafter, likewise, above 0 for the draft's tokens.
        draft_tokens: x_1 .. x_k.

    Returns:
        For every number of tokens, 0 counted: the weight p_i of the draft so far, and the probability h_i
        with which so many stand if no more do.
    """
    weights, stands = [1.0], [1.0]
    for i, x in enumerate(draft_tokens):
        weights.append(min(weights[-1] * float(p[i][x] / q[i][x]), 1.0))
        if i + 1 < len(draft_tokens):
            more = float(_residual(weights[-1], p[i + 1], q[i + 1]).sum())
            # Where nothing is left over, the weight is 1 and the models agree: rejection never comes here.
            stands.append(more / (more + 1 - weights[-1]) if more + 1 - weights[-1] > 0 else 1.0)
    return weights, [*stands, weights[-1]]


def block_accept(
    draft_tokens: Sequence[int],
    p: Laws,
    q: Laws,
    uniform: Sequence[float] | NDArray[np.float64],
    draw: Callable[[Distribution, int], int],
) -> Accepted:
    """Accept as many draft tokens as stand, and draw the one behind them.

    The length of a draft may depend on its tokens, as long as no token is taken back.

    Args:
        draft_tokens: x_1 .. x_k, at least one.
        p: the target's k + 1 laws, float64 `[vocab]` each.
        q: the k laws that the tokens were drawn from; one-hot for a token that was chosen.
        uniform: eta_1 .. eta_k in [0, 1). Neither these nor what `draw` takes may have been used before, for
            the draft or to accept another one.
        draw: a token of a law, behind so many tokens of the draft.
    """
    weights, stands = block_stops(p, q, draft_tokens)
    n = max((i for i, eta in enumerate(uniform, 1) if eta < stands[i]), default=0)
    law = p[n] if n == len(draft_tokens) else _residual(weights[n], p[n], q[n])
    ids = np.flatnonzero(law)
    if not ids.size:  # p and q differ by rounding only, and so did the number that rejected
        law, ids = p[n], np.flatnonzero(p[n])
    return Accepted(n, draw(Distribution(law[ids] / law[ids].sum(), ids), n))


def _residual(weight: float, p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    """What the target has left for a place, not normalised."""
    rest = weight * p
    rest -= q
    return np.maximum(rest, 0, out=rest)
