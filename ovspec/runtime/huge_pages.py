"""Large memory pages for buffers that a pass reads from end to end."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import openvino as ov

# The kernel's own; below a few of them there is nothing to gain.
_HUGE_PAGE = 1 << 21
_LEAST_BYTES = 2 * _HUGE_PAGE
_ADVICE: int | None = getattr(mmap, "MADV_HUGEPAGE", None)


def advise_huge_pages(tensor: ov.Tensor) -> None:
    """Ask the kernel to back a tensor that nothing was written to yet with pages of 2 MB.

    Reading gigabytes a second, a core otherwise waits at the end of every 4 KB for the next page's address,
    and its prefetcher stops there. Advice only: a kernel without such pages keeps the small ones.
    """
    data = tensor.data.view(np.uint8)  # bf16 has no NumPy type
    if _ADVICE is None or data.nbytes < _LEAST_BYTES:
        return
    begin = -(-data.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (data.ctypes.data + data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), ctypes.c_int(_ADVICE))
