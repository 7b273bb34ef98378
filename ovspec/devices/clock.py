"""The clock for durations of passes and calls."""

from __future__ import annotations

import time


def microseconds() -> float:
    """Monotonic time in microseconds."""
    return time.perf_counter_ns() / 1e3
