"""Memory that was freed, which the C library keeps for later."""

from __future__ import annotations

import ctypes
import os


def give_back_freed_memory() -> None:
    """Give the system what this process has freed; with a C library that can't be asked, nothing happens.

    What transforms make on the way is as large as layers are: kept, it stays resident beside the model.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None  # of glibc
    if trim is not None:
        trim(ctypes.c_size_t(0))
