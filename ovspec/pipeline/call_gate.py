"""The gate of calls to a pipeline: several that generate, or one that changes it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ovspec.engine.engine_thread import EngineThread
from ovspec.errors import PipelineBusyError


class CallGate:
    """Lets calls of several threads generate together, and refuses those that can't.

    A call that changes the pipeline, and a turn of a chat, run alone. A second caller is refused instead of
    made to wait, because a streamer that calls its own pipeline would wait for itself.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[int, tuple[str, str]] = {}
        self._alone = False

    @contextmanager
    def alone(self, name: str, engine: EngineThread) -> Iterator[None]:
        """Run the block as the call `name`, beside which no other call and no request to the engine runs.

        Raises:
            PipelineBusyError: one runs.
        """
        with self.admit(name, alone=True):
            if not engine.is_idle:
                raise PipelineBusyError(f"{name}: requests to this pipeline's engine run; wait for them")
            yield

    @contextmanager
    def admit(self, name: str, alone: bool) -> Iterator[None]:
        """Run the block as the call `name`.

        Raises:
            PipelineBusyError: a call runs above this one, or in another thread, and they can't both run.
        """
        thread = threading.current_thread()
        with self._lock:
            if thread.ident in self._running:
                running = self._running[thread.ident][0]
                raise PipelineBusyError(
                    f"{name}: called from inside {running} of the same pipeline (by a streamer?), which is "
                    f"not done yet; call {name} after {running} has returned, or make a second pipeline"
                )
            if self._running and (alone or self._alone):
                running, where = next(iter(self._running.values()))
                raise PipelineBusyError(
                    f"{name}: this pipeline is busy with {running} in thread {where!r}, and "
                    f"{name if alone else running} runs alone; wait until {running} has returned, or make "
                    "a second pipeline"
                )
            assert thread.ident is not None
            self._running[thread.ident] = name, thread.name
            self._alone = alone
        try:
            yield
        finally:
            with self._lock:
                del self._running[thread.ident]
                self._alone = False
