"""Release the pages of mapped weights as soon as they are not needed."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from ovspec_models.folder.private_names import misfit

OPENVINO_BACKEND = "nncf.quantization.algorithms.weight_compression.openvino_backend"
MORE_MEMORY = "the export takes more memory than it would with the NNCF that ovspec was tested with"
_PAGEMAP = Path("/proc/self/pagemap")  # of Linux
# Bits of its entries, 64 for each page: documented in Linux's Documentation/admin-guide/mm/pagemap.rst.
_PRESENT, _SWAPPED, _OF_FILE = (np.uint64(1 << bit) for bit in (63, 62, 61))


@contextmanager
def released_when_read(warn: Callable[[str], None]) -> Iterator[None]:
    """Let NNCF give back the pages of every weight that is mapped from a file when it reads the next one.

    Each page that was read stays resident while the compressed weights grow beside it: without this an
    export's peak is the floating-point weights and the compressed ones together. The weights that come out
    are the same; what is needed again is read from the file again. As long as the context lasts; on systems
    other than Linux, or with an NNCF of another build, of which `warn` is told, nothing changes.
    """
    # Not public, the same in NNCF 3.0 to 3.4: it has no hook between two weights.
    names = ("get_const_value_as_ov_tensor", "get_const_value_as_numpy_tensor")
    if reason := misfit(OPENVINO_BACKEND, names):
        warn(f"{reason}: {MORE_MEMORY}")
        yield
        return
    from nncf.quantization.algorithms.weight_compression import openvino_backend

    last: list[NDArray[Any]] = []

    def releasing(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def read_and_release(node: Any) -> Any:
            while last:
                release_pages(last.pop())
            last.append(node.data)
            return read(node)

        return read_and_release

    reading: dict[str, Any] = {name: releasing(getattr(openvino_backend, name)) for name in names}
    with patch.multiple(openvino_backend, **reading):
        yield


def release_pages(data: NDArray[Any]) -> None:
    """Release this process's resident pages of `data`, of any shape, that are mapped from a file.

    Pages that are not mapped from a file, or were written, stay; each page is checked. Neighbouring pages
    with other data of the same file may be released too.

    Raises:
        OSError: the system refuses, as it does for locked pages.
    """
    if not _PAGEMAP.exists() or not data.nbytes:
        return
    address = data.ctypes.data
    first, last = address // mmap.PAGESIZE, (address + data.nbytes - 1) // mmap.PAGESIZE
    with _PAGEMAP.open("rb", buffering=0) as file:
        file.seek(first * 8)
        pages = np.frombuffer(file.read((last - first + 1) * 8), np.uint64)
    own = (pages & _PRESENT != 0) & (pages & _OF_FILE == 0)
    if len(pages) <= last - first or np.any(own | (pages & _SWAPPED != 0)):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    start, size = first * mmap.PAGESIZE, len(pages) * mmap.PAGESIZE
    if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), mmap.MADV_DONTNEED):
        number = ctypes.get_errno()
        if number != errno.ENOMEM:  # that it is no longer mapped
            raise OSError(number, os.strerror(number))
