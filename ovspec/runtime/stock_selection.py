"""Host side of stock block selection: padded tables, summaries, keys of the last tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.runtime.cache import HeldKeys, KVCache
from ovspec.runtime.native_selection import NativeSelection, selects
from ovspec.runtime.tables import Rows
from ovspec.verify.limits import MAX_VERIFY_ROWS
from ovspec_transforms import Selection

_SHARED = (
    "select_tables", "select_always", "select_queries", "select_limits", "select_most", "select_tokens",
    "select_sources", "summary_tokens", "summary_weights", "held_rows",
)  # fmt: skip

_FEWEST = 16  # columns of a table


@dataclass(frozen=True, slots=True)
class SequencePass:
    """The part of one sequence in a pass.

    Attributes:
        rows: its rows.
        table: physical blocks, with those that the pass writes.
        first_row: its first row in the pass.
        written: the first block that it writes; `held` tokens of it are in the cache.
        known: whether the host has their keys, so that the block can be summarised.
        returned: the first row, counted from its own, whose key the graph returns.
    """

    rows: Rows
    table: NDArray[np.int32]
    first_row: int
    written: int
    held: int
    known: bool
    returned: int

    @classmethod
    def of(cls, rows: Rows, first_row: int, block_size: int) -> SequencePass:
        """Plan the pass; the table of the sequence must already cover its last row."""
        past, context, keys = rows.sequence.length, rows.context, rows.sequence.held_keys
        written = past // block_size
        return cls(
            rows=rows,
            table=rows.sequence.table[: -(-context // block_size)],
            first_row=first_row,
            written=written,
            held=past % block_size,
            known=past % block_size == 0 or (keys.begin <= written * block_size and keys.end >= past),
            returned=max(0, _first_held(context, block_size) - past),
        )


class StockSelection(NativeSelection):
    """Inputs and outputs of `select_blocks_stock`.

    Stock operations cannot write summaries in place and cannot read the cache, whose layout belongs to the
    device. The graph therefore returns the summaries of the blocks that a pass wrote and the keys of its last
    rows, and the host stores both: per anchor `[cache blocks, kv_heads, values]` f32, and per sequence and
    anchor the f32 keys of the last 64 tokens and the beginning of their first block. This covers a rollback
    of a whole pass. If a longer rollback ends within a block, the keys of that block are unknown, and the
    block is always read.

    Args:
        rule: the selection rule of the graph.
        coverage: share of the estimated attention mass to keep, up to 1.
        block_size: tokens per cache block.
        compiled: the compiled model.
        cache: its keys, values, summaries and lists.
    """

    def __init__(
        self, rule: Selection, coverage: float, block_size: int, compiled: ov.CompiledModel, cache: KVCache
    ) -> None:
        super().__init__(coverage, rule.refresh_interval, block_size, compiled)
        self._rule = rule
        self._cache = cache
        self._summaries = [spec for spec in cache.specs if spec.name.startswith("key_summary.")]
        self._plan: list[SequencePass] = []
        # Per anchor layer: number of values of a token's key.
        self._anchors: dict[int, int] = {}
        for port in compiled.inputs:
            name, _, layer = port.get_any_name().partition(".")
            if name == "held_keys":
                self._anchors[int(layer)] = port.get_partial_shape()[1].get_length()

    @property
    def names(self) -> set[str]:
        """The inputs that a pass provides."""
        return {*super().names, *_SHARED, *(f"held_keys.{anchor}" for anchor in self._anchors)}

    def inputs(self, batch: Sequence[Rows]) -> dict[str, NDArray[np.generic]]:
        """The inputs of a pass."""
        begins = [0, *accumulate(len(rows.tokens) for rows in batch)]
        self._plan = [
            SequencePass.of(rows, begin, self._block_size) for rows, begin in zip(batch, begins, strict=False)
        ]
        for one in self._plan:
            keys = one.rows.sequence.held_keys
            keys.unknown = {block for block in keys.unknown if block < one.written}
            if not one.known:
                keys.unknown.add(one.written)
                block = one.table[one.written : one.written + 1]
                for spec in self._summaries:
                    # These blocks are read without counting their mass, so that coverage reads rather more
                    # blocks.
                    self._cache.write(spec.name, block, np.full(spec.block_shape, np.nan, np.float32))
        return super().inputs(batch) | self._select_inputs() | self._summary_inputs()

    def _width(self) -> int:
        """Columns of padded tables."""
        return _padded(max(len(one.table) for one in self._plan))

    def _select_inputs(self) -> dict[str, NDArray[np.generic]]:
        """Padded tables `[sequences, blocks]`, and the blocks that are scored."""
        rule, shape = self._rule, (len(self._plan), self._width())
        tables, always = np.zeros(shape, np.int32), np.full(shape, -1, np.int32)
        tokens = np.zeros(shape, np.float32)
        sources = np.tile(np.arange(shape[1], dtype=np.int32), (shape[0], 1))
        limits = np.zeros(shape[0], np.int32)
        queries = []
        written = shape[1]
        for s, one in enumerate(self._plan):
            rows, blocks = one.rows, len(one.table)
            past, context = rows.sequence.length, rows.context
            tables[s, :blocks] = one.table
            tokens[s, :blocks] = np.minimum(self._block_size, context - self._block_size * np.arange(blocks))
            first_known = one.written if one.known else one.written + 1
            sources[s, first_known:blocks] = np.arange(written, written + blocks - first_known)
            written += blocks - first_known
            always[s, :blocks] = 1
            chooses = selects(rows, self.coverage, self._block_size)
            if chooses:
                local = (past - 1) // self._block_size + 1 - rule.local_blocks
                always[s, rule.sink_blocks : max(local, rule.sink_blocks)] = 0
                always[s, sorted(rows.sequence.held_keys.unknown)] = 1
            if chooses and self.refreshes(rows):
                kept = np.count_nonzero(always[s, :blocks])
                limits[s] = min(max(rows.budget - kept, 0), blocks - kept)
            count = len(rows.tokens) if chooses and rule.query == "union" else 1
            queries.append(np.arange(one.first_row, one.first_row + count, dtype=np.int32))
        longest = max(map(len, queries))
        return {
            "select_tables": tables,
            "select_always": always,
            "select_tokens": tokens,
            "select_sources": sources,
            "select_limits": limits,
            "select_most": np.array(min(shape[1], _padded(limits.max())), np.int32),
            "select_queries": np.stack([np.resize(rows, longest) for rows in queries]),
        }

    def _summary_inputs(self) -> dict[str, NDArray[np.generic]]:
        """Keys of the blocks that the pass writes; never empty, because stock operations need one entry."""
        size = self._block_size
        held = 1 + sum(one.held for one in self._plan if one.known)
        tokens, weights, returned = [], [], []
        keys: list[list[NDArray[np.float32]]] = [
            [np.zeros((1, width), np.float32)] for width in self._anchors.values()
        ]
        offset = 1
        for one in self._plan:
            past, context, sequence = one.rows.sequence.length, one.rows.context, one.rows.sequence
            # Row of the first token of the first written block; the rows of the pass follow the held keys.
            positions = np.arange(one.written * size, context)
            places = np.where(positions < past, offset - one.written * size, held + one.first_row - past)
            places += positions
            if one.known and one.held:
                offset += one.held
                for parts, known in zip(
                    keys, sequence.held_keys.slice(one.written * size, past), strict=True
                ):
                    parts.append(known)
            for begin in range(0 if one.known else size, len(places), size):
                block = places[begin : begin + size]
                tokens.append(np.concatenate([block, np.full(size - len(block), block[0])]))
                weights.append(np.where(np.arange(size) < len(block), 1 / len(block), 0.0))
            returned.append(np.arange(one.first_row + one.returned, one.first_row + len(one.rows.tokens)))
        inputs: dict[str, NDArray[np.generic]] = {
            "summary_tokens": np.array(tokens or [np.zeros(size)], np.int32),
            "summary_weights": np.array(weights or [np.zeros(size)], np.float32),
            "held_rows": np.concatenate(returned).astype(np.int32),
        }
        return inputs | {
            f"held_keys.{anchor}": np.concatenate(parts)
            for anchor, parts in zip(self._anchors, keys, strict=True)
        }

    def blocks_read(self, request: ov.InferRequest, index: int) -> list[float] | None:
        """Nothing: the graph does not return its lists."""
        return None

    def finish(self, batch: Sequence[Rows], request: ov.InferRequest) -> None:
        """Store the outputs of the pass; call this before the sequences advance."""
        written = [one.table[one.written + (not one.known) :] for one in self._plan]
        physical = np.concatenate(written)
        for anchor in self._anchors:
            summary = request.get_tensor(f"new_summary.{anchor}").data
            self._cache.write(f"key_summary.{anchor}", physical, summary[: len(physical)])
        self._hold(request)
        super().finish(batch, request)

    def _lists(self, batch: Sequence[Rows]) -> dict[str, NDArray[np.generic]]:
        """`kept_blocks.N` i32 `[sequences, blocks]`, padded."""
        found: dict[str, NDArray[np.generic]] = {}
        for anchor in self._remembering:
            lists = np.zeros((len(batch), self._width()), np.int32)
            for one, kept in zip(self._plan, lists, strict=True):
                known = one.rows.sequence.kept_blocks.get(anchor, lists[:0, :1])[: len(one.table), 0]
                kept[: len(known)] = known
            found[f"kept_blocks.{anchor}"] = lists
        return found

    def _remember(self, batch: Sequence[Rows], request: ov.InferRequest) -> None:
        for anchor in self._remembering:
            chosen = request.get_tensor(f"chosen_blocks.{anchor}").data
            for one, kept in zip(self._plan, chosen, strict=True):
                one.rows.sequence.kept_blocks[anchor] = kept[: len(one.table), None].copy()

    def _hold(self, request: ov.InferRequest) -> None:
        """Keep the keys of the last tokens, as far as they are known."""
        new = [request.get_tensor(f"new_keys.{anchor}").data for anchor in self._anchors]
        offset = 0
        for one in self._plan:
            sequence, count = one.rows.sequence, len(one.rows.tokens) - one.returned
            rows = [keys[offset : offset + count].copy() for keys in new]
            offset += count
            past, held = sequence.length, sequence.held_keys
            begin = max(_first_held(one.rows.context, self._block_size), min(held.begin, past))
            if one.returned == 0 and begin < past and held.end >= past:
                old = held.slice(begin, past)
                rows = [np.concatenate(pair) for pair in zip(old, rows, strict=True)]
            else:
                begin = past + one.returned
            sequence.held_keys = HeldKeys(begin, rows, held.unknown)


def _padded(count: int) -> int:
    """At least `count`, out of few numbers: a GPU compiles programs for every new shape."""
    step = max(_FEWEST, 1 << max(0, int(count).bit_length() - 3))
    return max(_FEWEST, -(-int(count) // step) * step)


def _first_held(context: int, block_size: int) -> int:
    """The first token whose key a later pass may need: that of the block where a rejected draft begins."""
    return max(0, context - MAX_VERIFY_ROWS) // block_size * block_size
