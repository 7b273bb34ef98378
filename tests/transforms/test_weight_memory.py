"""Memory that holds weights."""

from __future__ import annotations

import gc
import mmap
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from ovspec_transforms.weights import weight_memory
from ovspec_transforms.weights.weight_memory import WeightMemory


def test_pieces_are_zeros_on_lines_of_their_own() -> None:
    memory = WeightMemory()
    pieces = [memory.zeros(shape) for shape in ((3, 5), (1,), (64, 2), (7, 0), (1000, 333))]
    for piece in pieces:
        assert piece.ctypes.data % 64 == 0 and piece.flags.c_contiguous and not piece.any()
    for number, piece in enumerate(pieces, 1):
        piece[...] = number
    assert all((piece == number).all() for number, piece in enumerate(pieces, 1))


def test_a_piece_larger_than_a_slab_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_memory, "_SLAB", 1 << 21)
    memory = WeightMemory()
    small, large, after = memory.zeros((100,)), memory.zeros((3, 1 << 21)), memory.zeros((100,))
    large[...] = 1
    assert not small.any() and not after.any() and large.all()


def test_threads_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_memory, "_SLAB", 1 << 21)
    memory = WeightMemory()

    def fill(number: int) -> NDArray[np.uint8]:
        piece = memory.zeros((1 + number % 7, 40001))
        piece[...] = number % 251
        return piece

    with ThreadPoolExecutor(4) as pool:
        pieces = list(pool.map(fill, range(300)))
    assert all((piece == number % 251).all() for number, piece in enumerate(pieces))


def test_a_constant_outlives_the_memory_it_came_from() -> None:
    values = np.random.default_rng(0).integers(0, 256, (123, 457), dtype=np.uint8)
    memory = WeightMemory()
    constant = memory.constant(values)
    expected = values.copy()
    values[...] = 0
    del memory
    gc.collect()
    np.testing.assert_array_equal(constant.data, expected)


class Refusing(mmap.mmap):
    """A kernel that was built without large pages."""

    def madvise(self, *_: object) -> None:
        raise OSError(22, "Invalid argument")


@pytest.mark.parametrize("known", [True, False])
def test_a_system_without_large_pages_serves_too(monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    if known:
        monkeypatch.setattr(mmap, "mmap", Refusing)
    else:
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    piece = WeightMemory().zeros((5, 70))
    piece[...] = 3
    assert piece.ctypes.data % 64 == 0 and (piece == 3).all()
