"""Rows of a pass as a GPU is quickest with them: numbers of rows that repeat, sequences of one row each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ovspec.cache.block_manager import BlockManager
from ovspec.cache.cache import CachedSequence
from ovspec.devices.clock import microseconds
from ovspec.devices.devices import is_gpu
from ovspec.operations.backends import Backends
from ovspec.passes.pass_result import PassResult
from ovspec.passes.tables import Rows
from ovspec_transforms import QQ_BIAS, QQ_BIAS_BEGINS, SAMPLED_TOKENS_INDICES

_STEPS = (1, 2, 4, 8, 16, 32, 48, 64)  # rows of a pass; beyond them multiples of the last
_MEASURED = (2, 4, 8)  # rows of a sequence
_CONTEXT, _REPEAT = 960, 3  # where the model has as many positions
_FEWEST_ELEMENTS = 64  # of tree masks; their number is a power of two


class GpuRows:
    """How the rows of a pass are handed to a GPU.

    The GPU plugin builds programs for every number of rows that it has not seen, so rows that nobody reads
    are added until the number is one of few. And its attention has a kernel for sequences of one row, which
    may be quicker for the rows of one sequence too, as sequences of their own.

    Args:
        splits: whether rows may be sequences of their own; not where the graph counts blocks per sequence.
        fills: whether rows may be added; not where the rows of a pass share a budget.

    Attributes:
        most_apart: most rows of a sequence that are made sequences of one row; 1: none.
    """

    def __init__(self, splits: bool = True, fills: bool = True) -> None:
        self.most_apart = 1
        self._splits, self._fills = splits, fills

    @classmethod
    def of(cls, backends: Backends) -> GpuRows | None:
        """For a model on a GPU; `None` elsewhere."""
        attention = backends.attention
        splits = not (attention.selects and attention.covers)
        return cls(splits, fills=not backends.limits_weights) if is_gpu(backends.device) else None

    def arranged(self, batch: Sequence[Rows], blocks: BlockManager) -> tuple[Sequence[Rows], bool]:
        """The rows of a pass, and whether each of them is a sequence of its own."""
        return self._filled(batch, blocks) if self._fills else batch, self.apart(batch)

    def _filled(self, batch: Sequence[Rows], blocks: BlockManager) -> Sequence[Rows]:
        """The batch and, where the cache has room for them, rows that make their number one of few."""
        missing = more_rows(sum(len(rows.tokens) for rows in batch))
        features = next((rows.features for rows in batch if rows.features is not None), None)
        spare = blocks.spare
        if spare is not None:
            spare -= sum(1 + blocks.missing(rows.sequence, rows.context) for rows in batch)
        if not missing or (spare is not None and spare < -(-missing // blocks.block_size)):
            return batch
        filler = Rows(
            CachedSequence(),
            np.zeros(missing, np.int64),
            sampled=0,
            features=None if features is None else np.zeros((missing, *features.shape[1:]), features.dtype),
        )
        return [*batch, filler]

    def fitted(self, inputs: dict[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
        """The tables of a pass as the plugin takes them.

        The last linear layer has one of few numbers of rows too: the last one is computed again, and the
        caller leaves the copies out. Tree masks are padded, see `padded_masks`.
        """
        sampled = inputs.get(SAMPLED_TOKENS_INDICES)
        if sampled is not None and len(sampled):
            inputs |= {SAMPLED_TOKENS_INDICES: np.pad(sampled, (0, more_rows(len(sampled))), "edge")}
        if QQ_BIAS in inputs:
            sequences = len(inputs["subsequence_begins"]) - 1
            masks, begins = padded_masks(inputs[QQ_BIAS], inputs[QQ_BIAS_BEGINS], sequences)
            inputs |= {QQ_BIAS: masks, QQ_BIAS_BEGINS: begins}
        return inputs

    def apart(self, batch: Sequence[Rows]) -> bool:
        """Whether every row of these is a sequence of its own for attention."""
        return self._splits and all(
            len(rows.tokens) <= self.most_apart and rows.sequence.length > 0 and rows.parents is None
            for rows in batch
        )

    def measure(
        self,
        forward: Callable[[list[Rows]], PassResult],
        blocks: BlockManager,
        positions: int | None = None,
    ) -> None:
        """Set `most_apart` by the times of a few passes behind a context of zeros.

        Args:
            positions: that the model has; `None`: any number.
        """
        context = min(_CONTEXT, (positions or 2**31) - max(_MEASURED))
        if not self._splits or context < 1:
            return
        sequence = CachedSequence(tokens=np.zeros(context, np.int64))
        blocks.reserve(sequence, context)
        sequence.length, best = context, 1
        for rows in _MEASURED:
            times: dict[int, list[float]] = {1: [], rows: []}
            for _ in range(1 + _REPEAT):
                for self.most_apart, found in times.items():
                    started = microseconds()
                    forward([Rows(sequence, np.zeros(rows, np.int64), sampled=rows)])
                    found.append(microseconds() - started)
                    sequence.rollback(context)
            if median(times[rows][1:]) >= median(times[1][1:]):
                break
            best = rows
        self.most_apart = best
        blocks.release(sequence)


def more_rows(count: int) -> int:
    """Rows to add to `count`, at least 1, so that their number is one of few."""
    last = _STEPS[-1]
    return next((step for step in _STEPS if step >= count), -(-count // last) * last) - count


def padded_masks(
    masks: NDArray[np.generic], begins: NDArray[np.generic], sequences: int
) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """Inputs of the tree mask as the GPU plugin's kernels read them.

    They take the number of rows from the rounded down `native_sqrt` of a mask's elements, which for a square
    may come out as one less. A mask of n rows gets n elements more, so that the root is about n + 1/2. And
    they read the begins of every sequence, whether there is a tree or not.
    """
    if not len(begins):
        return np.zeros(_FEWEST_ELEMENTS, masks.dtype), np.zeros(sequences + 1, begins.dtype)
    padded: list[NDArray[np.generic]] = []
    for mask in np.split(masks, begins[1:-1]):
        padded += [mask, np.zeros(math.isqrt(len(mask)), masks.dtype)]
    lengths = [len(mask) + len(more) for mask, more in zip(padded[::2], padded[1::2], strict=True)]
    total = sum(lengths)
    size = max(_FEWEST_ELEMENTS, 1 << (total - 1).bit_length())
    padded.append(np.zeros(size - total, masks.dtype))
    return np.concatenate(padded), np.cumsum([0, *lengths]).astype(begins.dtype)
