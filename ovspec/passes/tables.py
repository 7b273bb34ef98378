"""Inputs of a paged pass: positions, block tables, budgets."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ovspec.cache.cache import CachedSequence
from ovspec.modes.row_limits import MAX_VERIFY_ROWS
from ovspec.sampling.sampling import SamplingParams
from ovspec_ops.verify_attention import pack_chain, pack_tables
from ovspec_transforms import (
    BLOCK_ROWS,
    HIDDEN_ROWS,
    QQ_BIAS,
    QQ_BIAS_BEGINS,
    ROPE_LENGTHS,
    SAMPLED_TOKENS_INDICES,
    SLOT_MAPPING,
    VERIFY_TABLES,
)

#: What heads read of the target's hidden states.
FEATURES = "hidden_states"

Number = TypeVar("Number", bound=np.number)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one sequence in a pass; they follow the tokens in its cache.

    Attributes:
        sequence: the sequence in the cache of the model that runs the pass.
        tokens: i64 `[rows]`.
        sampled: logits are computed for the last `sampled` rows.
        budget: blocks of context that verification attention may read, -1 for all.
        limits_experts: whether the model's expert budget, if it has one, applies in this pass.
        limits_channels: whether the model's limits of FFN channels, if it has any, apply to these rows.
        parents: i32 `[rows]`, the row that each row of a draft tree follows, -1 for the context; `None` for a
            chain. A parent comes before its children.
        text_length: tokens of the text that the rows are a chunk of; 0: it ends with them. Models with
            long RoPE choose their frequencies by it.
        states: the hidden states of the last so many rows are returned.
        features: f32 `[rows, 1, size]`, what a head reads beside the tokens, and a target whose layers can be
            left out in place of their embeddings.
        is_prompt: whether a model with sparse prompts reads the rows by that setting.
        coverage: share of the estimated attention mass to keep; `None`: the model's.
        offset: rows of the sequence before these in the same pass.
        layers: those that compute the rows, where the model can leave some out; `None`: all.
        block: the last so many rows are a block, whose rows may see each other, as the layers have it
            (`RowSight`), and those before them see nothing: they only leave their keys and values. `None`:
            every row sees itself and what is before it.
        drafts: so many tokens are drafted behind the rows in the same pass, by a model that can.
        vocab_size: only ids below it are drafted.
        sampling: how they are drawn; `None`: each is the most probable one.
        key: of the random numbers that they are drawn with, `Coupling.key`.
        unseen: tokens of the text that the sequence in this cache leaves out; those numbers go by the text.
        seen: tokens that the one row sees, as a part of a picture that is seen as a whole; 0: those up to it.
    """

    sequence: CachedSequence
    tokens: NDArray[np.int64]
    sampled: int = 1
    budget: int = -1
    limits_experts: bool = False
    limits_channels: bool = False
    parents: NDArray[np.int32] | None = None
    text_length: int = 0
    states: int = 0
    features: NDArray[np.float32] | None = None
    is_prompt: bool = False
    coverage: float | None = None
    offset: int = 0
    layers: tuple[int, ...] | None = None
    block: int | None = None
    drafts: int = 0
    vocab_size: int = 0
    sampling: SamplingParams | None = None
    key: int = 0
    unseen: int = 0
    seen: int = 0

    @property
    def is_dense(self) -> bool:
        """Whether the rows have no limits."""
        return self.budget < 0 and not (self.limits_experts or self.limits_channels)

    @property
    def past(self) -> int:
        """Tokens before the first row."""
        return self.sequence.length + self.offset

    @property
    def context(self) -> int:
        """Tokens that the last row sees."""
        return self.past + len(self.tokens)

    @property
    def end(self) -> int:
        """Tokens in the cache after the pass: drafted ones too, except the last, which no row reads."""
        return self.context + (self.drafts - 1 if self.drafts else 0)

    @property
    def positions(self) -> NDArray[np.int64]:
        """i64 `[rows]`: tokens before each row on its path."""
        if self.parents is None:
            return np.arange(self.past, self.context)
        positions: list[int] = []
        for parent in self.parents.tolist():
            positions.append(self.past if parent < 0 else positions[parent] + 1)
        return np.array(positions, np.int64)


def is_verification(rows: Rows) -> bool:
    """Whether rows continue a context and are few enough for the verification operation."""
    return rows.past > 0 and len(rows.tokens) <= MAX_VERIFY_ROWS and not rows.is_prompt


def _is_limited(rows: Rows) -> bool:
    return not rows.is_dense and (is_verification(rows) or rows.is_prompt)


def row_pieces(rows: int, apart: bool) -> list[tuple[int, int]]:
    """Ranges of a sequence's rows that stock attention takes as sequences of their own: all, or one each.

    All keys of a pass are written before attention begins, so both are the same.
    """
    return [(row, row + 1) for row in range(rows)] if apart else [(0, rows)]


def build_tables(
    batch: Sequence[Rows],
    block_size: int,
    native: bool,
    names: Iterable[str] | None = None,
    apart: bool = False,
) -> dict[str, NDArray[np.generic]]:
    """The pass's inputs by name, everything but the caches; only those in `names` where it is given.

    Without `native` attention takes the rows of a sequence together or `apart`, as `row_pieces`.
    With `native` keys and values go to `slot_mapping`. The stock node, which goes by blocks, gets pieces of
    the sequences, each with the block tables of the blocks that its rows are written to, with `past_lens` and
    `max_context_len` counted from there. Attention, summaries and selection go by `verify_tables`.
    """
    tables, makers = _Tables(batch, block_size, native, apart), _NATIVE if native else _STOCK
    found = {name: makers[name](tables) for name in (makers if names is None else names) if name in makers}
    return {name: array for name, array in found.items() if array is not None}


@dataclass(frozen=True, slots=True)
class _Pieces:
    """What the stock node takes as sequences of their own.

    Attributes:
        past: tokens before each.
        tables: blocks of each.
        begins: of their rows, and the end of the last.
    """

    past: list[int] = field(default_factory=list)
    tables: list[NDArray[np.int32]] = field(default_factory=list)
    begins: list[int] = field(default_factory=lambda: [0])


class _Tables:
    """The inputs of one pass, each made when it is asked for.

    Args:
        batch, block_size, native, apart: as of `build_tables`.
    """

    def __init__(self, batch: Sequence[Rows], block_size: int, native: bool, apart: bool) -> None:
        self._batch, self._block_size, self._native, self._apart = batch, block_size, native, apart
        self._begins = [0, *accumulate(len(rows.tokens) for rows in batch)]

    @functools.cached_property
    def _pieces(self) -> _Pieces:
        size, native, found = self._block_size, self._native, _Pieces()
        for rows, first in zip(self._batch, self._begins, strict=False):
            length, new, table = rows.past, len(rows.tokens), self._table(rows)
            for begin, end in _pieces(length, new, size) if native else row_pieces(new, self._apart):
                skipped = (length + begin) // size if native else 0
                found.tables.append(table[skipped : -(-(length + end) // size)])
                found.past.append(length + begin - skipped * size)
                found.begins.append(first + end)
        return found

    def _table(self, rows: Rows) -> NDArray[np.int32]:
        return rows.sequence.table[: -(-max(rows.end, rows.seen) // self._block_size)]

    def input_ids(self) -> NDArray[np.int64]:
        return joined([rows.tokens for rows in self._batch])

    def position_ids(self) -> NDArray[np.int64]:
        return joined([rows.positions for rows in self._batch])

    def past_lens(self) -> NDArray[np.int32]:
        return _i32(self._pieces.past)

    def subsequence_begins(self) -> NDArray[np.int32]:
        return _i32(self._begins if self._native else self._pieces.begins)

    def written_begins(self) -> NDArray[np.int32]:
        return _i32(self._pieces.begins)

    def block_indices(self) -> NDArray[np.int32]:
        return joined(self._pieces.tables)

    def block_indices_begins(self) -> NDArray[np.int32]:
        return _begins(self._pieces.tables)

    def max_context_len(self) -> NDArray[np.int32]:
        pieces = zip(self._pieces.past, itertools.pairwise(self._pieces.begins), strict=True)
        return np.array(max(past + end - begin for past, (begin, end) in pieces), np.int32)

    def sampled(self) -> NDArray[np.int64]:
        return _last_rows(self._begins, [rows.sampled for rows in self._batch])

    def hidden_rows(self) -> NDArray[np.int64]:
        return _last_rows(self._begins, [rows.states for rows in self._batch])

    def block_rows(self) -> NDArray[np.int64]:
        return _last_rows(self._begins, [rows.block or 0 for rows in self._batch])

    def verify_tables(self) -> NDArray[np.int32]:
        parents, first = _parents(self._batch), self._batch[0]
        if len(self._batch) == 1 and not len(parents) and first.block is None and not first.seen:
            return pack_chain(len(first.tokens), first.past, self._table(first))
        seen, lengths, counts = [], [], [0]
        for rows in self._batch:
            for count, past in _groups(rows):
                counts.append(counts[-1] + count)
                lengths.append(past)
                seen.append(self._table(rows))
        return pack_tables(_i32(counts), _i32(lengths), joined(seen), _begins(seen), parents)

    def verify_past_lens(self) -> NDArray[np.int32]:
        return _i32([rows.past if self._native and _is_limited(rows) else -1 for rows in self._batch])

    def rope_lengths(self) -> NDArray[np.int32]:
        lengths = _i32([max(rows.text_length, rows.context) for rows in self._batch])
        return np.repeat(lengths, [len(rows.tokens) for rows in self._batch])

    def features(self) -> NDArray[np.float32] | None:
        given = [rows.features for rows in self._batch if rows.features is not None]
        return joined(given) if given else None

    def slot_mapping(self) -> NDArray[np.int32]:
        return joined([slots(r.sequence.table, r.past, r.context, self._block_size) for r in self._batch])

    @functools.cached_property
    def masks(self) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
        return _tree_masks(self._batch)


_Makers = dict[str, Callable[[_Tables], NDArray[np.generic] | None]]
_OF_ALL: _Makers = {
    "input_ids": _Tables.input_ids,
    "position_ids": _Tables.position_ids,
    "past_lens": _Tables.past_lens,
    "subsequence_begins": _Tables.subsequence_begins,
    "written_begins": _Tables.written_begins,
    "block_indices": _Tables.block_indices,
    "block_indices_begins": _Tables.block_indices_begins,
    "max_context_len": _Tables.max_context_len,
    SAMPLED_TOKENS_INDICES: _Tables.sampled,
    HIDDEN_ROWS: _Tables.hidden_rows,
    BLOCK_ROWS: _Tables.block_rows,
    VERIFY_TABLES: _Tables.verify_tables,
    "verify_past_lens": _Tables.verify_past_lens,
    ROPE_LENGTHS: _Tables.rope_lengths,
    FEATURES: _Tables.features,
}
_NATIVE: _Makers = {**_OF_ALL, SLOT_MAPPING: _Tables.slot_mapping}
_STOCK: _Makers = {**_OF_ALL, QQ_BIAS: lambda t: t.masks[0], QQ_BIAS_BEGINS: lambda t: t.masks[1]}


def slots(table: NDArray[np.int32], begin: int, end: int, block_size: int) -> NDArray[np.int32]:
    """Slots of a sequence's tokens `begin` .. `end - 1`, i32: block * block size + token in the block."""
    block, last = begin // block_size, (end - 1) // block_size
    if block == last:
        first = int(table[block]) * block_size + begin % block_size
        return np.arange(first, first + end - begin, dtype=np.int32)
    blocks, tokens = np.divmod(np.arange(begin, end, dtype=np.int32), np.int32(block_size))
    found: NDArray[np.int32] = table[blocks] * np.int32(block_size) + tokens
    return found


def _groups(rows: Rows) -> list[tuple[int, int]]:
    """Rows that `VerifyAttention` takes as a sequence, and the tokens before each; -1: they see nothing."""
    if rows.seen:
        return [(1, rows.seen - 1)]
    if rows.block is None:
        return [(len(rows.tokens), rows.past)]
    written = len(rows.tokens) - rows.block
    return [(written, -1)] * (written > 0) + [(rows.block, rows.past + written)] * (rows.block > 0)


def _last_rows(begins: list[int], counts: list[int]) -> NDArray[np.int64]:
    """The last rows of every sequence, so many of each."""
    return joined([np.arange(end - n, end) for end, n in zip(begins[1:], counts, strict=True)])


def _pieces(past: int, rows: int, block_size: int) -> list[tuple[int, int]]:
    """Ranges of a sequence's rows that the stock node takes as sequences of their own.

    It computes attention within a piece, and nobody reads that; pieces of one block keep it small.
    """
    if rows <= MAX_VERIFY_ROWS:
        return [(0, rows)]
    cuts = [0, *range(block_size - past % block_size, rows, block_size), rows]
    return list(itertools.pairwise(cuts))


def _parents(batch: Sequence[Rows]) -> NDArray[np.int32]:
    """Input `verify_parents`: nothing where every sequence is a chain."""
    if all(rows.parents is None for rows in batch):
        return _i32([])
    for rows in batch:
        if rows.parents is not None and not is_verification(rows):
            raise ValueError(
                f"a tree of {len(rows.tokens)} rows behind {rows.past} tokens: expected 1 to "
                f"{MAX_VERIFY_ROWS} rows behind a context"
            )
    chains = (
        np.concatenate([np.arange(-1, count - 1, dtype=np.int32) for count, _ in _groups(rows)])
        for rows in batch
    )
    return joined(
        [c if rows.parents is None else rows.parents for rows, c in zip(batch, chains, strict=True)]
    )


def seen_rows(parents: Sequence[int]) -> NDArray[np.uint8]:
    """The mask of a tree, `[rows, rows]`: 1 where a row sees another, itself and those on its path.

    Args:
        parents: as `Rows.parents`.
    """
    seen = np.zeros((len(parents),) * 2, np.uint8)
    for row, parent in enumerate(parents):
        if parent >= 0:
            seen[row] = seen[parent]
        seen[row, row] = 1
    return seen


def _tree_masks(batch: Sequence[Rows]) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Inputs of the tree mask of stock attention: nothing where every sequence is a chain."""
    masks = [seen_rows([] if rows.parents is None else rows.parents.tolist()).reshape(-1) for rows in batch]
    begins = [0, *accumulate(map(len, masks))]
    return joined(masks), _i32(begins if begins[-1] else [])


def _i32(values: list[int]) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def _begins(tables: list[NDArray[np.int32]]) -> NDArray[np.int32]:
    return _i32([0, *accumulate(map(len, tables))])


def joined(arrays: list[NDArray[Number]]) -> NDArray[Number]:
    """Arrays one behind the other; of one sequence, the common case, its own."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
