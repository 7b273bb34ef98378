"""Blocks of a cache: shared by what begins alike, never written while shared, kept while there is room."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovspec.cache.block_manager import BlockManager
from ovspec.cache.cache import CachedSequence

SIZE = 4


def manager(max_blocks: int | None = None, max_cached: int = 100) -> BlockManager:
    blocks = BlockManager(SIZE)
    blocks.max_blocks, blocks.max_cached = max_blocks, max_cached
    return blocks


def read(blocks: BlockManager, tokens: list[int], seed: bytes = b"") -> CachedSequence:
    """A sequence whose keys and values of all tokens are there."""
    sequence = CachedSequence()
    blocks.share(sequence, tokens, seed)
    assert not blocks.reserve(sequence, len(tokens))
    sequence.length = len(tokens)
    blocks.publish(sequence, tokens, seed)
    return sequence


def test_sequences_that_begin_alike_share_full_blocks_but_the_one_with_the_last_token() -> None:
    blocks = manager()
    tokens = list(range(12))
    first = read(blocks, tokens)
    second = CachedSequence()
    assert blocks.share(second, tokens) == 8 and second.table.tolist() == first.table.tolist()[:2]
    other = CachedSequence()
    assert blocks.share(other, [*tokens[:7], 99, 8, 9]) == 4
    assert blocks.share(CachedSequence(), [99, *tokens[1:]]) == 0
    # The same tokens after other ones have other keys.
    assert blocks.share(CachedSequence(), [*tokens[4:8], 1]) == 0
    assert blocks.share(CachedSequence(), tokens, b"another model") == 0
    assert blocks.hits == 12


def test_blocks_outlive_their_sequences_and_the_longest_unused_go_first() -> None:
    blocks = manager(max_blocks=6)
    for start in (0, 100, 200):
        blocks.release(read(blocks, list(range(start, start + 8))))
    assert blocks.num_blocks == 6 and blocks.usage == 0.0 and blocks.spare == 6
    assert blocks.share(CachedSequence(), list(range(9))) == 8  # in use from here on
    read(blocks, list(range(300, 308)))
    assert blocks.share(CachedSequence(), list(range(200, 209))) == 8
    assert blocks.share(CachedSequence(), list(range(100, 109))) == 0
    assert blocks.num_blocks == 6 and blocks.spare == 0


def test_the_beginning_of_a_sequence_outlives_its_end() -> None:
    blocks = manager(max_blocks=3)
    blocks.release(read(blocks, list(range(12))))
    blocks.reserve(CachedSequence(), SIZE)
    assert blocks.share(CachedSequence(), list(range(13))) == 8


def test_a_cache_without_limit_keeps_what_it_may_and_then_reuses() -> None:
    blocks = manager(max_cached=4)
    for start in range(0, 800, 100):
        blocks.release(read(blocks, list(range(start, start + 8))))
    assert blocks.num_blocks == 6
    assert blocks.share(CachedSequence(), list(range(700, 709))) == 8
    none = manager(max_cached=0)
    none.release(read(none, list(range(8))))
    assert none.share(CachedSequence(), list(range(9))) == 0 and none.num_blocks == 2 and not none.usage


def test_a_shared_block_is_replaced_before_it_is_written() -> None:
    blocks = manager()
    tokens = list(range(9))
    first, second = read(blocks, tokens), read(blocks, tokens)
    kept = first.table.tolist()
    second.rollback(6)
    copies = blocks.reserve(second, 9)
    assert copies == [(kept[1], int(second.table[1]))] and second.table[1] != kept[1]
    assert first.table.tolist() == kept and second.table[0] == kept[0]
    # An owner that is alone writes to it, and nobody finds it any more.
    alone = read(blocks, list(range(50, 59)))
    alone.rollback(4)
    assert not blocks.reserve(alone, 9)
    assert blocks.share(CachedSequence(), list(range(50, 59))) == 4


def test_summaries_are_shared_with_their_blocks() -> None:
    blocks, tokens = manager(), list(range(13))
    living, newcomer = CachedSequence(), CachedSequence()
    blocks.reserve(living, 9)
    living.length, living.summarised = 9, 5
    blocks.publish(living, list(range(50, 59)))
    assert blocks.share(newcomer, list(range(50, 60))) == 8 and newcomer.summarised == 4
    first = read(blocks, tokens)
    second = blocks.fork(first)
    first.summarised = second.summarised = 10
    blocks.release(first)
    third = CachedSequence()
    blocks.share(third, tokens)
    assert third.summarised == 8, "whole blocks"
    blocks.release(third)
    # Who alone has a block writes to it again.
    second.rollback(6)
    assert second.summarised == 6
    blocks.reserve(second, 13)
    second.length = 13
    blocks.publish(second, tokens)
    blocks.release(second)
    fourth = CachedSequence()
    assert blocks.share(fourth, tokens) == 12 and fourth.summarised == 4
    blocks.release(fourth)
    assert fourth.summarised == 0
    # A block is handed out without what it was before.
    blocks.forget()
    read(blocks, tokens)
    again = CachedSequence()
    assert blocks.share(again, tokens) == 12 and again.summarised == 0


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 14)), max_size=40),
    st.integers(4, 12),
)
def test_whatever_happens_no_block_is_lost_or_held_twice(
    events: list[tuple[int, int, int]], limit: int
) -> None:
    blocks, live = manager(max_blocks=limit, max_cached=3), dict[int, tuple[CachedSequence, list[int]]]()
    contents: dict[int, list[int]] = {}
    for name, kind, length in events:
        tokens = [kind * 100 + position for position in range(length)]
        if name in live:
            blocks.release(live.pop(name)[0])
            continue
        sequence = CachedSequence()
        found = blocks.share(sequence, tokens)
        assert [t for b in sequence.table for t in contents[int(b)]] == tokens[:found]
        if blocks.missing(sequence, length) > (blocks.spare or 0):
            blocks.release(sequence)
            continue
        blocks.reserve(sequence, length)
        sequence.length = length
        for number, block in enumerate(sequence.table.tolist()):
            contents[block] = tokens[number * SIZE : (number + 1) * SIZE]
        blocks.publish(sequence, tokens)
        live[name] = sequence, tokens
        for held, text in live.values():
            assert [t for b in held.table for t in contents[int(b)]] == text
        assert blocks.num_blocks <= limit
        used = {int(block) for held, _ in live.values() for block in held.table}
        assert blocks.usage == pytest.approx(len(used) / limit)
    for sequence, _ in live.values():
        blocks.release(sequence)
    assert blocks.usage == 0.0 and blocks.spare == limit
    everything = CachedSequence()
    blocks.reserve(everything, limit * SIZE)
    assert sorted(everything.table) == list(np.arange(limit))
