"""Host side of native block selection: coverage and refresh of the lists."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.runtime.tables import Rows, is_verification


def selects(rows: Rows, coverage: float, block_size: int) -> bool:
    """Whether blocks are selected for these rows; if not, all blocks are read."""
    limited = rows.budget < -(-rows.context // block_size) or coverage < 1.0
    return is_verification(rows) and rows.budget >= 0 and limited


class NativeSelection:
    """Inputs of `BlockSelect` beside the tables, and the age of the lists of each sequence.

    Args:
        coverage: share of the estimated attention mass to keep, up to 1.
        refresh_interval: number of verification steps that use one list.
    """

    def __init__(
        self, coverage: float, refresh_interval: int, block_size: int, compiled: ov.CompiledModel
    ) -> None:
        self.coverage = coverage
        self._refresh_interval = refresh_interval
        self._block_size = block_size
        #: Anchor layers whose lists outlive their pass, with the number of heads that have one each.
        self._remembering: dict[int, int] = {}
        for port in compiled.inputs:
            name, _, layer = port.get_any_name().partition(".")
            if name == "kept_blocks":
                heads = port.get_partial_shape()[1]
                self._remembering[int(layer)] = heads.get_length() if heads.is_static else 1

    @property
    def names(self) -> set[str]:
        """The inputs that a pass provides."""
        return {"verify_coverage", "verify_refresh", *(f"kept_blocks.{n}" for n in self._remembering)}

    def inputs(self, batch: Sequence[Rows], apart: bool = False) -> dict[str, NDArray[np.generic]]:
        """`verify_coverage` and `verify_refresh` of a pass; `apart` is stock attention's."""
        given = [self.coverage if rows.coverage is None else rows.coverage for rows in batch]
        return {
            "verify_coverage": np.array(given, np.float32),
            "verify_refresh": np.array([self.refreshes(rows) for rows in batch], np.int32),
            **self._lists(batch),
        }

    def _lists(self, batch: Sequence[Rows]) -> dict[str, NDArray[np.generic]]:
        """`kept_blocks.N` i32 `[blocks of all sequences, heads]`, which the pass updates in place."""
        found: dict[str, NDArray[np.generic]] = {}
        for anchor, heads in self._remembering.items():
            lists = [np.zeros((self._blocks(rows), heads), np.int32) for rows in batch]
            for rows, kept in zip(batch, lists, strict=True):
                if not self.refreshes(rows):
                    known = rows.sequence.kept_blocks[anchor][: len(kept)]
                    kept[: len(known)] = known
            found[f"kept_blocks.{anchor}"] = np.concatenate(lists)
        return found

    def counts(self, request: ov.InferRequest) -> NDArray[np.int32]:
        """Blocks kept in the last pass, -1 for all, i32 `[layers, kv_heads, sequences]`."""
        counts: NDArray[np.int32] = request.get_tensor("selected_counts").data
        return counts

    def _blocks(self, rows: Rows) -> int:
        return -(-rows.context // self._block_size)

    def _remember(self, batch: Sequence[Rows], request: ov.InferRequest) -> None:
        ends = np.cumsum([self._blocks(rows) for rows in batch])
        for anchor in self._remembering:
            lists = np.split(request.get_tensor(f"kept_blocks.{anchor}").data, ends[:-1])
            for rows, kept in zip(batch, lists, strict=True):
                if not rows.is_prompt:  # the next pass chooses anew
                    rows.sequence.kept_blocks[anchor] = kept.copy()

    def refreshes(self, rows: Rows) -> bool:
        """Whether the next pass computes a new list for these rows."""
        age = rows.sequence.list_age
        return rows.is_prompt or age is None or age >= self._refresh_interval

    def blocks_read(self, request: ov.InferRequest, index: int) -> list[float] | None:
        """For each block of a sequence of the last pass, the share of the anchors' lists that have it.

        `None`: all blocks were read, or the graph does not say.
        """
        begins = request.get_tensor("verify_block_indices_begins").data
        begin, end = int(begins[index]), int(begins[index + 1])
        lists = request.get_tensor("selected_blocks").data[:, :, begin:end]
        kept = lists[lists >= 0]
        if not len(kept):
            return None
        shares = np.bincount(kept, minlength=end - begin) / (lists.shape[0] * lists.shape[1])
        return [round(share, 2) for share in shares.tolist()]

    def finish(self, batch: Sequence[Rows], request: ov.InferRequest) -> None:
        """Update the age of the lists after a pass; call this before the sequences advance.

        A pass without selection invalidates the lists: they do not contain the blocks that it wrote.
        """
        self._remember(batch, request)
        for rows in batch:
            sequence = rows.sequence
            if not selects(rows, self.coverage, self._block_size):
                sequence.list_age = None
            elif self.refreshes(rows):
                sequence.list_age = 1
            else:
                sequence.list_age = (sequence.list_age or 0) + 1
