"""What attention read of the context in a pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ovspec.passes.tables import Rows


def attended_tokens(
    counts: NDArray[np.int32] | None, batch: Sequence[Rows], block_size: int, summary_share: float = 0.0
) -> list[tuple[float, float]]:
    """Of every item of the batch, context tokens that attention read, and those of a dense pass.

    Where it selected, it read the summaries of all blocks too: they count as the tokens that they weigh as
    much as.

    Args:
        counts: i32 `[layers, kv_heads, sequences]`, blocks kept, -1 for all; `None` where no
            sequence of the pass selected. The last, possibly partial block is always among those kept.
        batch: the rows of the pass, before their sequences advanced.
        summary_share: bytes of a block's summaries as a share of its keys and values.
    """
    found = []
    for index, rows in enumerate(batch):
        attended = context = float(rows.context)
        kept: NDArray[np.int32] | None = None if counts is None else counts[:, :, index]
        if kept is not None and int(kept.max()) >= 0:
            blocks = -(-rows.context // block_size)
            dropped = float(np.where(kept < 0, 0, blocks - kept).mean()) * block_size
            if dropped > 0:
                # Less than all in any case: reading all of the context means that nothing was left out.
                read = context - dropped + summary_share * blocks * block_size
                attended = min(read, context * (1 - 1e-6))
        found.append((attended, context))
    return found
