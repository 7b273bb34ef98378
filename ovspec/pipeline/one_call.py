"""Admission of one call at a time to a pipeline."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ovspec.errors import PipelineBusyError


class OneCall:
    """Refuses a call while another one runs.

    All calls of a pipeline share one infer request, its input buffers and its cache; two at a time would
    write into each other's passes and return wrong text. A second caller is refused instead of made to wait,
    because a streamer that calls its own pipeline would wait for itself.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = ""
        self._thread: threading.Thread | None = None

    @contextmanager
    def admit(self, name: str) -> Iterator[None]:
        """Run the block as the call `name`.

        Raises:
            PipelineBusyError: another call runs, in another thread or below this one.
        """
        if not self._lock.acquire(blocking=False):
            raise PipelineBusyError(self._refusal(name))
        try:
            self._running, self._thread = name, threading.current_thread()
            yield
        finally:
            self._running, self._thread = "", None
            self._lock.release()

    def _refusal(self, name: str) -> str:
        running, thread = self._running or "another call", self._thread
        if thread is threading.current_thread():
            return (
                f"{name}: called from inside {running} of the same pipeline (by a streamer?), which is not "
                f"done yet; call {name} after {running} has returned, or make a second pipeline"
            )
        where = f" in thread {thread.name!r}" if thread else ""
        return (
            f"{name}: this pipeline is busy with {running}{where}, and runs one call at a "
            f"time; make one pipeline per thread, or wait until {running} has returned"
        )
