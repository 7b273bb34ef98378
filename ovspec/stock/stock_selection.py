"""Host side of stock block selection: padded tables, summaries, keys of the last tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.cache.cache import HeldKeys, KVCache
from ovspec.modes.row_limits import MAX_VERIFY_ROWS
from ovspec.operations.attention_config import AttentionConfig
from ovspec.passes.native_selection import NativeSelection
from ovspec.passes.tables import Rows, row_pieces
from ovspec_transforms import Selection

_NAMES = (
    "select_tables", "select_queries", "select_ranks", "select_sources", "select_whole", "select_tokens",
    "summary_tokens", "summary_weights", "held_rows", "held_keys", "verify_coverage", "select_always",
    "select_limits", "select_places", "select_begins", "select_past_lens", "select_max_context_len",
)  # fmt: skip
_SUMMARIES = "key_summary.all"

_FEWEST_COLUMNS, _FEWEST_RANKED = 64, 16


@dataclass(frozen=True, slots=True)
class SequencePass:
    """The part of one sequence in a pass.

    Attributes:
        rows: its rows.
        table: physical blocks, with those that the pass writes.
        first_row: its first row in the pass.
        pieces: first rows and ends of those that attention takes as a sequence of their own.
        written: the first block that it writes; `held` tokens of it are in the cache.
        known: whether the host has their keys, so that the block can be summarised.
        returned: the first row, counted from its own, whose key the graph returns.
    """

    rows: Rows
    table: NDArray[np.int32]
    first_row: int
    pieces: list[tuple[int, int]]
    written: int
    held: int
    known: bool
    returned: int

    @classmethod
    def of(cls, rows: Rows, first_row: int, block_size: int, apart: bool) -> SequencePass:
        """Plan the pass; the table of the sequence must already cover its last row."""
        past, context, keys = rows.sequence.length, rows.context, rows.sequence.held_keys
        written = past // block_size
        return cls(
            rows=rows,
            table=rows.sequence.table[: -(-context // block_size)],
            first_row=first_row,
            pieces=row_pieces(len(rows.tokens), apart),
            written=written,
            held=past % block_size,
            known=past % block_size == 0 or (keys.begin <= written * block_size and keys.end >= past),
            returned=max(0, _first_held(context, block_size) - past),
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """What every anchor is to choose in a pass, for the sequences that it has.

    Attributes:
        always: i32 `[sequences, blocks]`, 1: the block stays, 0: it may be chosen, -1: padding.
        limits: i32 `[sequences]`, how many are chosen.
    """

    always: NDArray[np.int32]
    limits: NDArray[np.int32]

    @property
    def kept(self) -> NDArray[np.int32]:
        """Blocks of every list, if all that may be are chosen, i32 `[sequences]`."""
        stay: NDArray[np.int32] = np.sum(self.always == 1, axis=1, dtype=np.int32)
        return stay + self.limits


class StockSelection(NativeSelection):
    """Inputs and outputs of `select_blocks_stock`.

    Stock operations cannot write summaries in place and cannot read the cache, whose layout belongs to the
    device. The graph therefore returns the summaries of the blocks that a pass wrote and the keys of its last
    rows, and the host stores both: `[cache blocks, values of all anchors]` f32, and per sequence the f32 keys
    of the last 64 tokens and the beginning of their first block. This covers a rollback of a whole pass. If a
    longer rollback ends within a block, the keys of that block are unknown, and the block is always read.
    """

    def __init__(
        self,
        rule: Selection,
        coverage: float,
        block_size: int,
        compiled: ov.CompiledModel,
        cache: KVCache,
        anchors: Sequence[int],
    ) -> None:
        self.coverage, self._block_size = coverage, block_size
        self._rule, self._cache, self._layers = rule, cache, len(anchors)
        ports = {port.get_any_name(): port for port in compiled.inputs}
        self._covers = "verify_coverage" in ports
        self._key_values = ports["held_keys"].get_partial_shape()[1].get_length()
        self._summary = next(spec for spec in cache.specs if spec.name == _SUMMARIES)
        whole = sum(spec.block_bytes for spec in cache.specs if spec.name != _SUMMARIES)
        self.summary_share = self._summary.block_bytes / whole
        self._plan: list[SequencePass] = []
        self._choice = Choice(np.zeros((0, 0), np.int32), np.zeros(0, np.int32))

    @property
    def names(self) -> set[str]:
        """The inputs that a pass provides."""
        return set(_NAMES)

    def inputs(self, batch: Sequence[Rows], apart: bool = False) -> dict[str, NDArray[np.generic]]:
        """The inputs of a pass."""
        begins = [0, *accumulate(len(rows.tokens) for rows in batch)]
        self._plan = [
            SequencePass.of(rows, begin, self._block_size, apart)
            for rows, begin in zip(batch, begins, strict=False)
        ]
        for one in self._plan:
            keys = one.rows.sequence.held_keys
            keys.unknown = {block for block in keys.unknown if block < one.written}
            if not one.known:
                keys.unknown.add(one.written)
                # These blocks are read without counting their mass, so that coverage reads rather more
                # blocks.
                block = one.table[one.written : one.written + 1]
                self._cache.write(_SUMMARIES, block, np.full(self._summary.block_shape, np.nan, np.float32))
        self._choice = self._choose()
        return self._table_inputs() | self._list_inputs() | self._summary_inputs()

    def _width(self) -> int:
        """Columns of padded tables."""
        return _padded(max(len(one.table) for one in self._plan), _FEWEST_COLUMNS)

    def _choose(self) -> Choice:
        rule = self._rule
        always = np.full((len(self._plan), self._width()), -1, np.int32)
        limits = np.zeros(len(self._plan), np.int32)
        for s, one in enumerate(self._plan):
            rows, blocks = one.rows, len(one.table)
            always[s, :blocks] = 1
            if not self.selects(rows):
                continue
            local = (rows.sequence.length - 1) // self._block_size + 1 - rule.local_blocks
            always[s, rule.sink_blocks : max(local, rule.sink_blocks)] = 0
            always[s, sorted(rows.sequence.held_keys.unknown)] = 1
            kept = np.count_nonzero(always[s, :blocks])
            limits[s] = min(max(rows.budget - kept, 0), blocks - kept)
        return Choice(always, limits)

    def _table_inputs(self) -> dict[str, NDArray[np.generic]]:
        """Padded tables `[sequences, blocks]`, and the rows that blocks are scored with."""
        shape = (len(self._plan), self._width())
        tables, tokens = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
        sources = np.tile(np.arange(shape[1], dtype=np.int32), (shape[0], 1))
        written = shape[1]
        for s, one in enumerate(self._plan):
            rows, blocks = one.rows, len(one.table)
            tables[s, :blocks] = one.table
            before = rows.past - self._block_size * np.arange(blocks)
            tokens[s, :blocks] = np.clip(before, 0, self._block_size)
            first_known = one.written if one.known else one.written + 1
            sources[s, first_known:blocks] = np.arange(written, written + blocks - first_known)
            written += blocks - first_known
        return {
            "select_tables": tables,
            "select_tokens": tokens,
            "select_sources": sources,
            "select_queries": np.array([[one.first_row] for one in self._plan], np.int32),
            "select_whole": np.array([len(one.table) for one in self._plan], np.int32),
            "select_ranks": np.arange(self._ranked(), dtype=np.int32),
            "verify_coverage": np.full(shape[0], self.coverage, np.float32),
        }

    def _ranked(self) -> int:
        """How many blocks of every sequence are ranked."""
        return _padded(int(self._choice.limits.max()), _FEWEST_RANKED)

    def _list_inputs(self) -> dict[str, NDArray[np.generic]]:
        """What is known of the lists before the pass."""
        choice = self._choice
        inputs: dict[str, NDArray[np.generic]] = {
            "select_always": choice.always,
            "select_limits": choice.limits,
        }
        return inputs if self._covers else inputs | self._places(choice)

    def _places(self, choice: Choice) -> dict[str, NDArray[np.generic]]:
        """Places of the lists among the ranked and all blocks, and what attention takes beside the lists."""
        size, ranked = self._block_size, self._ranked()
        row = ranked + choice.always.shape[1]
        places, begins, past_lens, longest = [], [0], [], 1
        kept = choice.kept
        for s, one in enumerate(self._plan):
            past, blocks = one.rows.sequence.length, len(one.table)
            stay = ranked + np.flatnonzero(choice.always[s] == 1)
            whole = s * row + np.concatenate([np.arange(choice.limits[s]), stay])
            for begin, end in one.pieces:
                later = blocks - -(-(past + end) // size)  # of rows behind these
                places.append(whole[: len(whole) - later])
                begins.append(begins[-1] + len(places[-1]))
                past_lens.append(past + begin - size * (blocks - int(kept[s])))
                longest = max(longest, past_lens[-1] + end - begin)
        return {
            # Not padded: in a prompt the GPU plugin takes their number for that of the blocks to write.
            "select_places": np.concatenate(places).astype(np.int32)[None],
            "select_begins": np.array(begins, np.int32),
            "select_past_lens": np.array(past_lens, np.int32),
            "select_max_context_len": np.array(longest, np.int32),
        }

    def _summary_inputs(self) -> dict[str, NDArray[np.generic]]:
        """Keys of the blocks that the pass writes; never empty, because stock operations need one entry."""
        size = self._block_size
        held = 1 + sum(one.held for one in self._plan if one.known)
        tokens, weights, returned = [], [], []
        keys = [np.zeros((1, self._key_values), np.float32)]
        offset = 1
        for one in self._plan:
            past, context, sequence = one.rows.sequence.length, one.rows.context, one.rows.sequence
            # Row of the first token of the first written block; the rows of the pass follow the held keys.
            positions = np.arange(one.written * size, context)
            places = np.where(positions < past, offset - one.written * size, held + one.first_row - past)
            places += positions
            if one.known and one.held:
                offset += one.held
                keys.append(sequence.held_keys.slice(one.written * size, past))
            for begin in range(0 if one.known else size, len(places), size):
                block = places[begin : begin + size]
                tokens.append(np.concatenate([block, np.full(size - len(block), block[0])]))
                weights.append(np.where(np.arange(size) < len(block), 1 / len(block), 0.0))
            returned.append(np.arange(one.first_row + one.returned, one.first_row + len(one.rows.tokens)))
        return {
            "summary_tokens": np.array(tokens or [np.zeros(size)], np.int32),
            "summary_weights": np.array(weights or [np.zeros(size)], np.float32),
            "held_rows": np.concatenate(returned).astype(np.int32)[:, None],
            "held_keys": np.concatenate(keys),
        }

    def blocks_read(self, request: ov.InferRequest, index: int) -> list[float] | None:
        """Nothing: the graph does not return its lists."""
        return None

    def finish(self, batch: Sequence[Rows], request: ov.InferRequest) -> None:
        """Store the outputs of the pass; call this before the sequences advance."""
        written = np.concatenate([one.table[one.written + (not one.known) :] for one in self._plan])
        self._cache.write(_SUMMARIES, written, request.get_tensor("new_summary").data[: len(written)])
        self._hold(request.get_tensor("new_keys").data[:, 0])

    def counts(self, batch: Sequence[Rows], request: ov.InferRequest) -> NDArray[np.int32] | None:
        """Blocks that each sparse layer read in the last pass, i32 `[layers, 1, sequences]`."""
        if self._covers:
            return super().counts(batch, request)
        return np.tile(self._choice.kept, (self._layers, 1, 1))

    def _hold(self, new: NDArray[np.float32]) -> None:
        """Keep the keys of the last tokens, as far as they are known."""
        offset = 0
        for one in self._plan:
            sequence, count = one.rows.sequence, len(one.rows.tokens) - one.returned
            rows = new[offset : offset + count].copy()
            offset += count
            past, held = sequence.length, sequence.held_keys
            begin = max(_first_held(one.rows.context, self._block_size), min(held.begin, past))
            if one.returned == 0 and begin < past and held.end >= past:
                rows = np.concatenate([held.slice(begin, past), rows])
            else:
                begin = past + one.returned
            sequence.held_keys = HeldKeys(begin, rows, held.unknown)


def host_selection(
    attention: AttentionConfig,
    block_size: int,
    compiled: ov.CompiledModel,
    cache: KVCache,
    anchors: tuple[int, ...],
) -> NativeSelection | None:
    """What a compiled model's passes need of the host to select; `None` if its graph does not select.

    Args:
        anchors: of every layer that stock operations make sparse, ascending.
    """
    if not attention.selects:
        return None
    rule, coverage = attention.selection, attention.coverage
    if attention.backend == "stock":
        return StockSelection(rule, coverage, block_size, compiled, cache, anchors)
    return NativeSelection(coverage, block_size, compiled, cache.specs)


def _padded(count: int, fewest: int) -> int:
    """At least `count`, out of few numbers: a GPU compiles programs for every new shape."""
    return max(fewest, 1 << (int(count) - 1).bit_length())


def _first_held(context: int, block_size: int) -> int:
    """The first token whose key a later pass may need: that of the block where a rejected draft begins."""
    return max(0, context - MAX_VERIFY_ROWS) // block_size * block_size
