"""A replica: a process with a pipeline, whose engine answers the requests of all servers of a cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from ovspec.engine.requests.request import Request, RequestOutput
from ovspec.generation.raw_metrics import RawPerfMetrics
from ovspec.pipeline.loaded_pipeline import LoadedPipeline


class Replica:
    """Runs in a process of its own, on any machine."""

    def __init__(self, load: Callable[[], LoadedPipeline], max_num_seqs: int) -> None:
        self._engine = load().engine
        self._engine.engine.max_num_seqs = max_num_seqs
        self._engine.engine.warm_up()

    async def answer(self, request: Request) -> AsyncIterator[RequestOutput]:
        """The outputs of a request; when nobody wants them any more, the request is aborted."""
        # Its clock is another machine's, and its id may come again, from another server.
        own = replace(request, arrival_time=time.perf_counter(), metrics=RawPerfMetrics())
        loop, outputs = asyncio.get_running_loop(), asyncio.Queue[RequestOutput]()
        try:
            self._engine.submit(own, lambda output: loop.call_soon_threadsafe(outputs.put_nowait, output))
        except (ValueError, RuntimeError) as error:
            yield RequestOutput(request.request_id, error=error)
            return
        try:
            while True:
                output = await outputs.get()
                yield output
                if output.finished:
                    return
        finally:
            self._engine.abort([request.request_id])

    async def check_health(self) -> None:
        """Ray Serve asks; a replica that fails is replaced."""
        if not self._engine.lives:
            raise RuntimeError("the engine has ended")
