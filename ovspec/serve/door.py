"""Work for a request before it is let in: its body is read, its text becomes tokens."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from typing import TypeVar

from ovspec.serve.requests.api_error import ApiError

Result = TypeVar("Result")

# Lanes: bytes of a body up to which it takes this one, and how many bodies may wait in it.
_LANES = ((2**14, 256), (2**18, 64), (math.inf, 8))
# While answers are in work, a lane takes a twentieth of the interpreter's time: work of more than `_SECONDS`
# of processor time is followed by a rest of `_PAUSE` times as long.
_SECONDS, _PAUSE = 0.002, 19


class Door:
    """Does this work beside the event loop, so much at a time as is bounded.

    Reading JSON and tokenizing keep Python's interpreter to themselves until they end, in whatever thread:
    a body of megabytes holds up all answers for tenths of a second. Bodies of a size therefore have a thread
    of their own, which rests behind work that took long, and short ones do not wait behind long ones. Those
    with a grammar wait for one another alone: the first that has it takes up to a second to make it ready. So
    do those with pictures, whose reading takes as long, also where the body only names their files.

    Args:
        is_busy: whether answers are in work.
    """

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        kinds = product((False, True), repeat=2)  # with a grammar, with pictures
        self._lanes = {kind: [(size, _Lane(most, is_busy)) for size, most in _LANES] for kind in kinds}

    async def run(
        self, size: int, work: Callable[[], Result], has_grammar: bool = False, has_pictures: bool = False
    ) -> Result:
        """The result of some work for a body of `size` bytes.

        Raises:
            ApiError: 429, too many bodies wait.
        """
        lanes = self._lanes[has_grammar, has_pictures]
        lane = next(lane for longest, lane in lanes if size <= longest)
        return await lane.run(work)


class _Lane:
    """One thread, and the work that waits for it."""

    def __init__(self, most: int, is_busy: Callable[[], bool]) -> None:
        self._pool = ThreadPoolExecutor(1, "ovspec door")
        self._most, self._is_busy = most, is_busy
        self._waiting, self._rests_until = 0, 0.0

    async def run(self, work: Callable[[], Result]) -> Result:
        if self._waiting >= self._most:
            message = f"{self._waiting} requests wait to be read, no more may; try again later"
            raise ApiError(429, message, code="rate_limit_exceeded", retry_after=1)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, partial(self._do, work))
        finally:
            self._waiting -= 1

    def _do(self, work: Callable[[], Result]) -> Result:
        if self._is_busy():
            time.sleep(max(0.0, self._rests_until - time.monotonic()))
        began = time.thread_time()  # not the time in which others have the interpreter
        try:
            return work()
        finally:
            took = time.thread_time() - began
            self._rests_until = time.monotonic() + _PAUSE * took * (took > _SECONDS)
