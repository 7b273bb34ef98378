"""Huge pages (2 MB) for buffers that a pass reads from end to end."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import openvino as ov

from ovspec.devices.freed_memory import c_library
from ovspec_transforms.weights.weight_memory import HUGE_PAGE

# Buffers below two pages of the kernel gain nothing.
_LEAST_BYTES = 2 * HUGE_PAGE
_ADVICE: int | None = getattr(mmap, "MADV_HUGEPAGE", None)


def with_huge_pages(size: int) -> int:
    """Bytes that a tensor of a size takes: its last huge page is whole."""
    return size if _ADVICE is None or size < _LEAST_BYTES else -(-size // HUGE_PAGE) * HUGE_PAGE


def advise_huge_pages(tensor: ov.Tensor) -> None:
    """Ask the kernel to back a tensor with pages of 2 MB; call this before the first write.

    With pages of 4 KB, a core that streams weights waits for an address translation at the end of every page,
    and the hardware prefetcher stops there. This is advice only: a kernel without huge pages keeps the small
    ones.
    """
    data = tensor.data.view(np.uint8)  # NumPy has no bf16
    if _ADVICE is None or data.nbytes < _LEAST_BYTES:
        return
    begin = -(-data.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (data.ctypes.data + data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    c_library().madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), ctypes.c_int(_ADVICE))
