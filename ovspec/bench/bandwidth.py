"""Memory bandwidth of this machine, all cores together."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

_BUFFER_BYTES = 1 << 30
_BYTES_PER_THREAD = 64 << 20
_PASSES = 7


def buffer_bytes(threads: int) -> int:
    """Bytes that `read_bandwidth` allocates: far more than the caches hold, for every thread."""
    return max(_BUFFER_BYTES // threads, _BYTES_PER_THREAD) * threads


def read_bandwidth(threads: int) -> float:
    """Gigabytes (1e9 bytes) per second that `threads` threads read from memory, each its own slice.

    Every thread first writes its slice, so that the pages exist and are local to the thread that reads them.
    The maximum over bytes is NumPy's cheapest reduction; its speed is that of the memory.
    """
    size = buffer_bytes(threads) // threads
    with ThreadPoolExecutor(threads) as pool:
        slices = list(pool.map(lambda value: np.full(size, value, np.uint8), range(1, threads + 1)))

        def one_pass() -> float:
            started = time.perf_counter()
            list(pool.map(np.maximum.reduce, slices))
            return time.perf_counter() - started

        seconds = min(one_pass() for _ in range(_PASSES))
    return threads * size / seconds / 1e9


def method(threads: int) -> str:
    """Description of `read_bandwidth` for the output."""
    gb = buffer_bytes(threads) / 1e9
    return f"best of {_PASSES} streaming reads of {gb:.1f} GB by {threads} threads (NumPy maximum over uint8)"
