"""Host side of native block selection: who selects, and what of the context a pass reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.cache.cache import CacheTensor
from ovspec.passes.tables import Rows, is_verification
from ovspec_ops.verify_attention.tables import unpack_tables
from ovspec_transforms import COMPUTED_LAYERS, VERIFY_TABLES


class NativeSelection:
    """Inputs of `BlockSelect` beside the tables.

    A sequence selects where that reads less than all of its context: the blocks of its budget and the
    summaries of all blocks, in bytes. Where it does not, its pass is dense, and exact.

    Args:
        coverage: share of the estimated attention mass to keep, up to 1.
        compiled: the model, whose output `selected_counts` has a row for each layer that reads lists.
        specs: the tensors of the cache.

    Attributes:
        summary_share: bytes of all summaries of a block as a share of its keys and values in these layers.
    """

    def __init__(
        self, coverage: float, block_size: int, compiled: ov.CompiledModel, specs: Sequence[CacheTensor]
    ) -> None:
        self.coverage = coverage
        self._block_size = block_size
        self._skips = any(COMPUTED_LAYERS in port.get_names() for port in compiled.inputs)
        summaries = {
            spec.name.partition(".")[2]: spec.block_bytes
            for spec in specs
            if spec.name.startswith("key_summary.")
        }
        caches = {spec.name: spec.block_bytes for spec in specs}
        keys_and_values = sum(
            caches[f"{side}_cache.{layer}"] for side in ("key", "value") for layer in summaries
        )
        reading = compiled.output("selected_counts").get_partial_shape()[0].get_length()
        self.summary_share = sum(summaries.values()) / (keys_and_values / len(summaries) * reading)

    @property
    def names(self) -> set[str]:
        """The inputs that a pass provides."""
        return {"verify_budgets", "verify_coverage", "summarised_lens"}

    def selects(self, rows: Rows) -> bool:
        """Whether blocks are selected for these rows; if not, all blocks are read."""
        if rows.budget < 0 or not (is_verification(rows) or rows.is_prompt):
            return False
        return self.reads_less(rows.budget, rows.context, self._coverage(rows))

    def reads_less(self, budget: int, context: int, coverage: float) -> bool:
        """Whether a selection of `budget` blocks reads less than all of a context; -1 is no limit."""
        blocks = -(-context // self._block_size)
        return budget >= 0 and (budget + self.summary_share * blocks < blocks or coverage < 1.0)

    def _summarises(self, rows: Rows) -> bool:
        """Whether the pass makes summaries: if it reads them, and of prompts.

        Where layers can be left out, also whenever all compute: a draft by some of them makes none for the
        others.
        """
        return self.selects(rows) or not is_verification(rows) or (self._skips and rows.layers is None)

    def inputs(self, batch: Sequence[Rows], apart: bool = False) -> dict[str, NDArray[np.generic]]:
        """Those of a pass; `apart` is stock attention's.

        A sequence's summaries are made once, up to the end of its last rows that need them. Dense steps leave
        them to the next step that selects.
        """
        budgets = [rows.budget if self.selects(rows) else -1 for rows in batch]
        summarised, later = [-1] * len(batch), None
        for index in reversed(range(len(batch))):
            sequence = batch[index].sequence
            # A pass that failed late noted summaries of tokens that are not there.
            sequence.summarised = min(sequence.summarised, sequence.length)
            if sequence is not later and self._summarises(batch[index]):
                summarised[index], later = sequence.summarised, sequence
        return {
            "verify_budgets": np.array(budgets, np.int32),
            "verify_coverage": np.array([self._coverage(rows) for rows in batch], np.float32),
            "summarised_lens": np.array(summarised, np.int32),
        }

    def _coverage(self, rows: Rows) -> float:
        return self.coverage if rows.coverage is None else rows.coverage

    def counts(self, batch: Sequence[Rows], request: ov.InferRequest) -> NDArray[np.int32] | None:
        """Blocks kept in the last pass, -1 for all, i32 `[layers, kv_heads, sequences]`; `None`: all."""
        if not any(self.selects(rows) for rows in batch):
            return None
        counts: NDArray[np.int32] = request.get_tensor("selected_counts").data
        return counts

    def blocks_read(self, request: ov.InferRequest, index: int) -> list[float] | None:
        """For each block of a sequence of the last pass, the share of all lists that have it.

        `None`: all blocks were read, or the graph does not say.
        """
        begins = unpack_tables(request.get_tensor(VERIFY_TABLES).data)[2]
        begin, end = int(begins[index]), int(begins[index + 1])
        lists = request.get_tensor("selected_blocks").data[:, :, begin:end]
        kept = lists[lists >= 0]
        if not len(kept):
            return None
        shares = np.bincount(kept, minlength=end - begin) / (lists.shape[0] * lists.shape[1])
        return [round(share, 2) for share in shares.tolist()]

    def finish(self, batch: Sequence[Rows], request: ov.InferRequest) -> None:
        """After a pass, before the sequences advance: note what was summarised."""
        for rows in batch:
            if self._summarises(rows):
                rows.sequence.summarised = rows.context
