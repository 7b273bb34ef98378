"""The blocks of a cache: handed out, shared by sequences that begin alike, kept while there is room."""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from ovspec.cache.cache import CachedSequence

_ROOT = b""


class BlockManager:
    """Allocates physical blocks and counts who refers to them.

    A full block is known by the tokens in it and all before it. Sequences that begin with these tokens share
    it, and none of them writes to it. A fork shares all blocks until it writes. Known blocks that nobody
    refers to stay until their room is needed, those that were used longest ago go first.

    Attributes:
        num_blocks: blocks that the cache has to have.
        max_blocks: the most that it may have, `None`: as memory allows.
        max_cached: known blocks without an owner that are kept before the cache grows for others; 0: none
            are kept, nothing is shared.
        hits: tokens that were found among the shared blocks.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.num_blocks = 0
        self.max_blocks: int | None = None
        self.max_cached = 0
        self.hits = 0
        self._free: list[int] = []
        self._references: list[int] = []
        self._known: dict[bytes, int] = {}
        self._digests: dict[int, bytes] = {}
        self._unused: OrderedDict[int, None] = OrderedDict()
        self._summarised = set[int]()  # full ones whose summaries are made

    def limit(self, max_blocks: int | None, max_cached: int) -> None:
        """Set `max_blocks` and `max_cached`; without cached blocks what they hold is forgotten."""
        self.max_blocks, self.max_cached = max_blocks, max_cached
        if not max_cached:
            self.forget()

    @property
    def num_held(self) -> int:
        """Blocks that sequences hold."""
        return self.num_blocks - len(self._free) - len(self._unused)

    @property
    def usage(self) -> float:
        """Share of the blocks that sequences hold."""
        held = self.num_held
        return held / (self.max_blocks or self.num_blocks) if held else 0.0

    @property
    def max_tokens(self) -> float:
        """The most tokens that one sequence may have."""
        return math.inf if self.max_blocks is None else self.max_blocks * self.block_size

    def room_of_beams(self, prompt: int, beams: int) -> float:
        """The most tokens that each of so many beams behind a prompt surely has room for, with the prompt.

        The request keeps the prompt's own blocks; beams share those that are full.
        """
        if self.max_blocks is None:
            return math.inf
        left = self.max_blocks - -(-prompt // self.block_size)
        return (prompt // self.block_size + left // beams) * self.block_size

    @property
    def spare(self) -> int | None:
        """Blocks that can still be handed out; `None`: any number."""
        if self.max_blocks is None:
            return None
        return self.max_blocks - self.num_blocks + len(self._free) + len(self._unused)

    def missing(self, sequence: CachedSequence, length: int) -> int:
        """Blocks that a sequence lacks for `length` tokens."""
        return max(0, -(-length // self.block_size) - len(sequence.table))

    def required(self, lengths: Iterable[tuple[CachedSequence, int]]) -> int:
        """Blocks that the cache needs when these sequences have the given numbers of tokens."""
        return self.num_blocks + self._growth(self.lacking(lengths))

    def lacking(self, lengths: Iterable[tuple[CachedSequence, int]]) -> int:
        """Blocks to hand out before these sequences, each given once, have so many tokens.

        Those that they write and that others refer to count too: `_own` takes others for them.
        """
        missing, writers = 0, dict[int, int]()
        for sequence, length in lengths:
            missing += self.missing(sequence, length)
            for block in sequence.table[sequence.length // self.block_size :].tolist():
                if self._references[block] > 1:
                    writers[block] = writers.get(block, 0) + 1
        # Whoever is the last to refer to a block keeps it.
        return missing + sum(min(count, self._references[block] - 1) for block, count in writers.items())

    def _growth(self, missing: int) -> int:
        """Blocks to add before so many can be handed out."""
        short = missing - len(self._free)
        grown = short - max(0, len(self._unused) - self.max_cached)
        if self.max_blocks is not None:
            grown = min(grown, self.max_blocks - self.num_blocks)
        return max(0, grown, short - len(self._unused))

    def reserve(self, sequence: CachedSequence, length: int) -> list[tuple[int, int]]:
        """Extend the sequence's table so that it holds `length` tokens, and own what it will write.

        Returns:
            Blocks whose contents are to be copied before the next pass, from and to.
        """
        copies = self._own(sequence)
        missing = self.missing(sequence, length)
        if missing:
            blocks = self._take(missing)
            sequence.table = np.concatenate([sequence.table, np.array(blocks, np.int32)])
        return copies

    def fork(self, sequence: CachedSequence) -> CachedSequence:
        """A sequence that shares all blocks of another one; who writes to one first copies it."""
        for block in sequence.table.tolist():
            self._references[block] += 1
        return sequence.fork()

    def release(self, sequence: CachedSequence) -> None:
        """Give the blocks of the sequence back."""
        self._summarised.update(sequence.table[: sequence.summarised // self.block_size].tolist())
        # The last block first: a beginning serves more sequences than an end.
        for block in reversed(sequence.table.tolist()):
            self._drop(block)
        sequence.clear()

    def share(
        self, sequence: CachedSequence, tokens: Sequence[int], seed: bytes = _ROOT, piece: int = 1
    ) -> int:
        """Begin a sequence with the known blocks of its first tokens; how many tokens these are.

        Args:
            sequence: an empty one.
            tokens: of the sequence; the last is left to be computed.
            seed: what the blocks depend on beside their tokens.
            piece: tokens whose blocks are taken all or none.
        """
        size, digests = self.block_size, list[bytes]()
        if not self.max_cached or len(sequence.table):
            return 0
        digest = seed
        for begin in range(0, len(tokens) - size, size):
            digest = _digest(digest, tokens[begin : begin + size])
            if digest not in self._known:
                break
            digests.append(digest)
        whole = len(digests) * size // piece * piece
        sequence.digests += digests[: whole // size]
        found = [self._known[digest] for digest in sequence.digests]
        for block in found:
            self._references[block] += 1
            self._unused.pop(block, None)
        sequence.table = np.array(found, np.int32)
        sequence.length = len(found) * size
        sequence.summarised = size * len(list(takewhile(self._summarised.__contains__, found)))
        self.hits += sequence.length
        return sequence.length

    def publish(self, sequence: CachedSequence, tokens: Sequence[int], seed: bytes = _ROOT) -> None:
        """Make the full blocks of a sequence known, so that others may share them.

        Args:
            sequence: whose keys and values are those of a dense pass.
            tokens: those of them that are final.
            seed: as `share`.
        """
        if not self.max_cached:
            return
        size = self.block_size
        for number in range(len(sequence.digests), min(len(tokens), sequence.length) // size):
            before = sequence.digests[-1] if sequence.digests else seed
            digest = _digest(before, tokens[number * size : (number + 1) * size])
            sequence.digests.append(digest)
            block = int(sequence.table[number])
            if (number + 1) * size <= sequence.summarised:
                self._summarised.add(block)
            if digest not in self._known:
                self._known[digest] = block
                self._digests[block] = digest

    def publishes(self, sequence: CachedSequence, length: int) -> bool:
        """Whether `publish` of the first `length` tokens makes anything known: asked in every step."""
        whole = min(length, sequence.length) // self.block_size
        return self.max_cached > 0 and len(sequence.digests) < whole

    def forget(self) -> None:
        """Forget what blocks hold; those without an owner are free."""
        self._free += self._unused
        self._unused.clear()
        self._known.clear()
        self._digests.clear()
        self._summarised.clear()

    def _own(self, sequence: CachedSequence) -> list[tuple[int, int]]:
        """Make sure that nobody else knows the blocks from the sequence's next token on."""
        first, copies = sequence.length // self.block_size, []
        for number, block in enumerate(sequence.table[first:].tolist(), first):
            if self._references[block] > 1:
                (own,) = self._take(1)
                sequence.table = sequence.table.copy()
                sequence.table[number] = own
                self._drop(block)
                if sequence.length % self.block_size and number == first:
                    copies.append((block, own))
            else:
                self._forget(block)
        del sequence.digests[first:]
        return copies

    def _take(self, count: int) -> list[int]:
        grown = self._growth(count)
        self._free += range(self.num_blocks, self.num_blocks + grown)
        self._references += [0] * grown
        self.num_blocks += grown
        while len(self._free) < count:
            block, _ = self._unused.popitem(last=False)
            self._forget(block)
            self._free.append(block)
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def _drop(self, block: int) -> None:
        self._references[block] -= 1
        if self._references[block]:
            return
        if block in self._digests:
            self._unused[block] = None
        else:
            self._forget(block)
            self._free.append(block)

    def _forget(self, block: int) -> None:
        self._summarised.discard(block)
        digest = self._digests.pop(block, None)
        if digest is not None:
            del self._known[digest]


def _digest(before: bytes, tokens: Sequence[int]) -> bytes:
    content: NDArray[np.int64] = np.array(tokens, np.int64)
    return hashlib.blake2b(before + content.tobytes(), digest_size=16).digest()
