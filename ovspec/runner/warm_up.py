"""The largest pass of a model, computed before the first request."""

from __future__ import annotations

import numpy as np

from ovspec.cache.cache import CachedSequence
from ovspec.modes.row_limits import MAX_VERIFY_ROWS
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner

#: Rows of a pass whose logits are computed. From some 64 rows on products take the time, so more gain
#: nothing, but their logits take memory.
MOST_SAMPLED = 128


def warm_up(runner: ModelRunner, rows: int, features: int = 0) -> None:
    """Compute a pass of so many rows, and forget it.

    The plugin keeps buffers of the largest pass that there was. A server that meets it late seems to leak.

    Args:
        runner: its blocks are free afterwards.
        rows: of the pass, 1 or more; logits are computed for 128 of them at most.
        features: size of what a head reads beside a token.
    """
    sampled = min(rows, MOST_SAMPLED)
    lengths = [min(MAX_VERIFY_ROWS, sampled - begin) for begin in range(0, sampled, MAX_VERIFY_ROWS)]
    batch = [_rows(length, length, features) for length in lengths]
    if rows > sampled:
        batch.append(_rows(rows - sampled, 0, features))
    try:
        runner.forward(batch)
    finally:
        for one in batch:
            runner.release(one.sequence)


def _rows(count: int, sampled: int, features: int) -> Rows:
    """Rows of a sequence of its own."""
    read = np.zeros((count, 1, features), np.float32) if features else None
    return Rows(CachedSequence(), np.zeros(count, np.int64), sampled=sampled, features=read)
