"""Return freed memory from the C library to the system."""

from __future__ import annotations

import ctypes
import functools
import os


@functools.cache
def c_library() -> ctypes.CDLL:
    """The C library, opened once: ctypes makes types at each opening, which only the collector frees."""
    return ctypes.CDLL(None)


def give_back_freed_memory() -> None:
    """Return freed memory of this process to the system; does nothing without glibc.

    Intermediate results of transforms are as large as layers; without this they stay resident.
    """
    trim = getattr(c_library(), "malloc_trim", None) if os.name == "posix" else None  # of glibc
    if trim is not None:
        trim(ctypes.c_size_t(0))
