"""The clock that passes and calls are timed with."""

from __future__ import annotations

import time


def microseconds() -> float:
    """A clock for durations, in microseconds."""
    return time.perf_counter_ns() / 1e3
