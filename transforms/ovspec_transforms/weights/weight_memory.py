"""Memory in huge pages for weights that passes read from end to end."""

from __future__ import annotations

import math
import mmap
import weakref
from contextlib import suppress
from threading import Lock

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops

_LINE = 64
HUGE_PAGE = 1 << 21  # of the kernel
_SLAB = 1 << 28  # every slab is an input of an operation, which costs 2 us a pass
_SLABS = list["weakref.ref[NDArray[np.uint8]]"]()


def slab_of(part: NDArray[np.generic]) -> tuple[NDArray[np.uint8], int] | None:
    """The slab that holds an array, and the byte of it where the array begins; `None` where none does.

    A constant of OpenVINO gives its memory without the array that it was made from.
    """
    at = part.ctypes.data
    for slab in [slab for known in _SLABS if (slab := known()) is not None]:
        if slab.ctypes.data <= at < slab.ctypes.data + slab.nbytes:
            return slab, at - slab.ctypes.data
    return None


class WeightMemory:
    """Allocates zeroed memory from slabs of huge pages, aligned to cache lines.

    With pages of 4 KB, a core that streams weights waits for an address translation at the end of every page,
    and the hardware prefetcher stops there. The weights of one layer are often too small for their own huge
    pages. A slab is freed when all of its parts are; unused memory of a slab is never touched. Threads may
    share an object.
    """

    def __init__(self) -> None:
        self._left = np.zeros(0, np.uint8)
        self._lock = Lock()

    def zeros(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """u8 of `shape`."""
        count = math.prod(shape)
        lines = -(-count // _LINE) * _LINE
        with self._lock:
            if lines > len(self._left):
                self._left = _slab(max(lines, _SLAB))
            taken, self._left = self._left[:count], self._left[lines:]
        return taken.reshape(shape)

    def constant(self, values: NDArray[np.uint8]) -> ov.Node:
        """A constant that holds a copy of u8 `values`."""
        taken = self.zeros(values.shape)
        taken[...] = values
        return ops.constant(taken, shared_memory=True)


def _slab(count: int) -> NDArray[np.uint8]:
    """At least `count` zeros at the beginning of a huge page; without huge pages, of small ones."""
    size = -(-count // HUGE_PAGE) * HUGE_PAGE
    every = _zeros(size + HUGE_PAGE)
    first = -every.ctypes.data % HUGE_PAGE
    _SLABS[:] = [known for known in _SLABS if known() is not None]
    _SLABS.append(weakref.ref(every))  # what parts of it refer to
    return every[first : first + size]


def _zeros(size: int) -> NDArray[np.uint8]:
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None:
        return np.zeros(size, np.uint8)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel that was built without them
        memory.madvise(advice)
    return np.frombuffer(memory, np.uint8)
