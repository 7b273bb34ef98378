"""A model whose memory is free while nobody asks."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Sequence

from ovspec.devices.freed_memory import give_back_freed_memory
from ovspec.engine.engine_thread import OnOutput
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.requests.request import Request, RequestOutput
from ovspec.errors import EngineClosedError
from ovspec.pipeline.loaded_pipeline import LoadedPipeline

_LOG = logging.getLogger(__name__)


class IdleModel:
    """Answers as `EngineThread` does; frees its pipeline when idle, and loads it again for a request.

    Args:
        load: starts the pipeline; it is called at once, and in a thread of this object's later on.
        seconds: without a request, after which the pipeline is freed.

    Raises:
        Exception: what `load` raises.
    """

    def __init__(self, load: Callable[[], LoadedPipeline], seconds: float) -> None:
        self._load, self._seconds = load, seconds
        self._pipeline: LoadedPipeline | None = load()
        self._waiting: dict[str, tuple[Request, OnOutput]] = {}
        self._last_request = time.monotonic()
        self._closing = False
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name="ovspec idle model", daemon=True)
        self._thread.start()

    @property
    def engine(self) -> LLMEngine | None:
        """The engine, while the model is loaded."""
        pipeline = self._pipeline
        return None if pipeline is None else pipeline.engine.engine

    @property
    def num_waiting(self) -> int:
        """Requests that wait for the model."""
        return len(self._waiting)

    @property
    def lives(self) -> bool:
        """Whether requests are taken and answered."""
        pipeline = self._pipeline
        return not self._closing and (pipeline is None or pipeline.engine.lives)

    def submit(self, request: Request, on_output: OnOutput) -> None:
        """Take a request; it waits while the model is loaded.

        Args:
            on_output: as of `EngineThread.submit`; what the engine refuses after a load is an output too.

        Raises:
            ValueError: as `LLMEngine.check`.
            RuntimeError: the model is closed.
        """
        with self._change:
            if self._closing:
                raise EngineClosedError("the engine is closed: it takes no requests")
            self._last_request = time.monotonic()
            if self._pipeline is None:
                self._waiting[request.request_id] = request, on_output
                self._change.notify()
            else:
                self._pass_on(self._pipeline, request, on_output)

    def _pass_on(self, pipeline: LoadedPipeline, request: Request, on_output: OnOutput) -> None:
        def noted(output: RequestOutput) -> None:
            if output.finished:
                self._last_request = time.monotonic()
            on_output(output)

        pipeline.engine.submit(request, noted)

    def abort(self, ids: Sequence[str]) -> None:
        """End requests; those that wait for the model get no output."""
        with self._change:
            for name in ids:
                self._waiting.pop(name, None)
            if self._pipeline is not None:
                self._pipeline.engine.abort(ids)

    def close(self) -> None:
        """Take no more requests, end those that run, and free the model."""
        with self._change:
            self._closing = True
            self._change.notify()
        self._thread.join()

    def _loop(self) -> None:
        while True:
            with self._change:
                while not self._closing and (left := self._seconds_left()) != 0.0:
                    self._change.wait(left)
                pipeline, self._pipeline = self._pipeline, None
                if self._closing and pipeline is None:
                    return
            if pipeline is None:
                self._load_again()
                continue
            pipeline.engine.close(finish=False)
            del pipeline
            gc.collect()
            give_back_freed_memory()
            if not self._closing:
                _LOG.info("ovspec: no request for %g s, the model's memory is free", self._seconds)

    def _seconds_left(self) -> float | None:
        """Until the model is freed or loaded; `None`: that needs a request."""
        if self._pipeline is None:
            return 0.0 if self._waiting else None
        if not self._pipeline.engine.is_idle:
            return self._seconds
        return max(0.0, self._last_request + self._seconds - time.monotonic())

    def _load_again(self) -> None:
        found: LoadedPipeline | None = None
        failure: Exception | None = None
        try:
            found = self._load()
        except Exception as error:
            _LOG.exception("ovspec: the model can't be loaded again; the next request tries once more")
            failure = RuntimeError(f"the model can't be loaded again: {error}")
        with self._change:
            self._pipeline, self._last_request = found, time.monotonic()
            waiting, self._waiting = self._waiting, {}
            for request, on_output in waiting.values():
                refused = failure
                if found is not None:
                    try:
                        self._pass_on(found, request, on_output)
                    except (ValueError, RuntimeError) as error:
                        refused = error
                if refused is not None:
                    on_output(RequestOutput(request.request_id, error=refused))
