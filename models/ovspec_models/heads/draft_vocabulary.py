"""The tokens that a head drafts: `d2t` of a checkpoint says which of the target's they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def check_tables(folder: Path, drafted: int, d2t: NDArray[Any], t2d: NDArray[Any] | None) -> None:
    """Refuse a head whose two tables do not name the same tokens.

    Args:
        folder: of the head, for the message.
        drafted: tokens of its output layer.
        d2t: token i is i + d2t[i] of the target.
        t2d: of each of the target's tokens, whether the head drafts it; `None`: the checkpoint has none.

    Raises:
        ValueError: they differ, or d2t has no number for each token.
    """
    if d2t.shape != (drafted,) or not np.issubdtype(d2t.dtype, np.integer):
        raise ValueError(
            f"head '{folder}': d2t has {d2t.dtype} of the shape {list(d2t.shape)}, expected an integer for "
            f"each of the {drafted} tokens of lm_head; get the checkpoint again"
        )
    if t2d is None or t2d.dtype != np.bool_:
        return
    if not np.array_equal(np.sort(d2t + np.arange(len(d2t))), np.flatnonzero(t2d)):
        raise ValueError(
            f"head '{folder}': d2t and t2d name other tokens of the target; token i is i + d2t[i] there; get "
            "the checkpoint again"
        )
