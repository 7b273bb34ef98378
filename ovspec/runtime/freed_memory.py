"""Return freed memory from the C library to the system."""

from __future__ import annotations

import ctypes
import os


def give_back_freed_memory() -> None:
    """Return freed memory of this process to the system; does nothing without glibc.

    Intermediate results of transforms are as large as layers; without this they stay resident.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None  # of glibc
    if trim is not None:
        trim(ctypes.c_size_t(0))
