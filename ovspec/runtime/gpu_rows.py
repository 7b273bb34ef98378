"""Rows of a pass as a GPU is quickest with them: numbers of rows that repeat, sequences of one row each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ovspec.runtime.backends import Backends
from ovspec.runtime.block_manager import BlockManager
from ovspec.runtime.cache import CachedSequence
from ovspec.runtime.clock import microseconds
from ovspec.runtime.devices import is_gpu
from ovspec.runtime.tables import Rows

_STEPS = (1, 2, 4, 8, 16, 32, 48, 64)  # rows of a pass; beyond them multiples of the last
_MEASURED = (2, 4, 8)  # rows of a sequence
_CONTEXT, _REPEAT = 960, 3


class GpuRows:
    """How the rows of a pass are handed to a GPU.

    The GPU plugin builds programs for every number of rows that it has not seen, so rows that nobody reads
    are added until the number is one of few. And its attention has a kernel for sequences of one row, which
    may be quicker for the rows of one sequence too, as sequences of their own.

    Args:
        splits: whether rows may be sequences of their own; not where the graph counts blocks per sequence.
        fills: whether rows may be added; not where the rows of a pass share a budget.

    Attributes:
        most_apart: rows of a sequence up to which that kernel takes them; 1: none but those that come alone.
    """

    def __init__(self, splits: bool = True, fills: bool = True) -> None:
        self.most_apart = 1
        self._splits, self._fills = splits, fills

    @classmethod
    def of(cls, backends: Backends) -> GpuRows | None:
        """For a model on a GPU; `None` elsewhere."""
        attention = backends.attention
        limited = any(part and part.limits for part in (backends.experts, backends.ffn))
        splits = not (attention.selects and attention.covers)
        return cls(splits, fills=not limited) if is_gpu(backends.device) else None

    def arranged(self, batch: Sequence[Rows], blocks: BlockManager) -> tuple[Sequence[Rows], bool]:
        """The rows of a pass, and whether each of them is a sequence of its own."""
        return self._filled(batch, blocks) if self._fills else batch, self.apart(batch)

    def _filled(self, batch: Sequence[Rows], blocks: BlockManager) -> Sequence[Rows]:
        """The batch and, where the cache has room for them, rows that make their number one of few."""
        missing = more_rows(sum(len(rows.tokens) for rows in batch))
        unsampled = more_rows(max(1, sum(rows.sampled for rows in batch)))
        features = next((rows.features for rows in batch if rows.features is not None), None)
        spare = blocks.spare
        if spare is not None:
            spare -= sum(1 + blocks.missing(rows.sequence, rows.context) for rows in batch)
        if not missing or (spare is not None and spare < -(-missing // blocks.block_size)):
            return batch
        filler = Rows(
            CachedSequence(),
            np.zeros(missing, np.int64),
            sampled=min(missing, unsampled),  # the last linear layer has as many rows
            features=None if features is None else np.zeros((missing, *features.shape[1:]), features.dtype),
        )
        return [*batch, filler]

    def apart(self, batch: Sequence[Rows]) -> bool:
        """Whether every row of these is a sequence of its own for attention."""
        return self._splits and all(
            len(rows.tokens) <= self.most_apart and rows.sequence.length > 0 and rows.parents is None
            for rows in batch
        )

    def measure(self, forward: Callable[[list[Rows]], NDArray[np.float32]], blocks: BlockManager) -> None:
        """Set `most_apart` by the times of a few passes behind a context of zeros."""
        if not self._splits:
            return
        sequence = CachedSequence(tokens=np.zeros(_CONTEXT, np.int64))
        blocks.reserve(sequence, _CONTEXT)
        sequence.length, best = _CONTEXT, 1
        for rows in _MEASURED:
            times: dict[int, list[float]] = {1: [], rows: []}
            for _ in range(1 + _REPEAT):
                for self.most_apart, found in times.items():
                    started = microseconds()
                    forward([Rows(sequence, np.zeros(rows, np.int64), sampled=rows)])
                    found.append(microseconds() - started)
                    sequence.rollback(_CONTEXT)
            if median(times[rows][1:]) >= median(times[1][1:]):
                break
            best = rows
        self.most_apart = best
        blocks.release(sequence)


def more_rows(count: int) -> int:
    """Rows to add to `count`, at least 1, so that their number is one of few."""
    last = _STEPS[-1]
    return next((step for step in _STEPS if step >= count), -(-count // last) * last) - count
