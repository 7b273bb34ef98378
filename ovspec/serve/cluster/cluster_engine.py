"""The engine of a server whose requests are answered by the replicas of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from itertools import zip_longest
from typing import Any

from ray.exceptions import RayActorError

from ovspec.engine.engine_thread import OnOutput
from ovspec.engine.requests.request import Request, RequestMetrics, RequestOutput
from ovspec.errors import EngineClosedError, InvalidValueError
from ovspec.generation.raw_metrics import RawPerfMetrics

# A request that ends its replica so often is the reason for it.
_MOST_TRIES = 4


class ClusterEngine:
    """Answers requests as `EngineThread` does; what a replica can't end any more, another one goes on with.

    Greedy answers and sampled ones depend on the tokens before them and on the seed only, so an answer that
    another replica goes on with is the answer that the first one would have given (as far as the precision
    makes it the same in every pass).

    Args:
        handle: of the replicas' deployment in Ray Serve, for streams.
        running: how many replicas run; it asks the cluster.
    """

    def __init__(self, handle: Any, running: Callable[[], int]) -> None:
        self._handle, self._running = handle, running
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ended = False

    @property
    def lives(self) -> bool:
        """Whether requests are taken and a replica answers them; it takes a while."""
        return not self._ended and self._running() > 0

    def close(self) -> None:
        """Take no more requests."""
        self._ended = True

    @property
    def num_requests(self) -> int:
        """Requests that run or wait."""
        return len(self._tasks)

    def submit(self, request: Request, on_output: OnOutput) -> None:
        """Take a request; called in the event loop, as `on_output` is.

        Raises:
            RuntimeError: it has ended.
            InvalidValueError: beams with stop strings, whose tokenizer can't be sent to a replica.
        """
        if self._ended:
            raise EngineClosedError("the server ends: it takes no requests")
        if request.detokenizer is not None:
            raise InvalidValueError("stop: on a cluster beams know no stop strings; leave it out")
        task = asyncio.get_running_loop().create_task(self._answer(request, on_output))
        self._tasks[request.request_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(request.request_id, None))

    def abort(self, ids: Sequence[str]) -> None:
        """End requests; replicas free them before their next step."""
        for name in ids:
            if (task := self._tasks.get(name)) is not None:
                task.cancel()

    async def _answer(self, request: Request, on_output: OnOutput) -> None:
        answered, before = list[int](), RequestMetrics()
        for _ in range(_MOST_TRIES):
            # What a pass cost is counted where it runs.
            asked = None if answered else request.prompt_logprobs  # they come before the first token
            sent = replace(request, answered=answered, metrics=RawPerfMetrics(), prompt_logprobs=asked)
            stream = self._handle.answer.remote(sent)
            metrics = before
            try:
                async for output in stream:
                    answered += output.token_ids
                    metrics = output.metrics = added(before, output.metrics)
                    on_output(output)
                    if output.finished:
                        return
            except RayActorError:
                before = metrics
            except asyncio.CancelledError:
                stream.cancel()
                raise
            except Exception as error:
                on_output(RequestOutput(request.request_id, metrics=metrics, error=error))
                return
        lost = RuntimeError(f"{_MOST_TRIES} replicas ended while they answered this request")
        on_output(RequestOutput(request.request_id, metrics=before, error=lost))


def added(first: RequestMetrics, then: RequestMetrics) -> RequestMetrics:
    """Counts of a request that two replicas answered, one after the other."""
    if first == RequestMetrics():
        return then
    counts: dict[str, Any] = {
        entry.name: getattr(first, entry.name) + getattr(then, entry.name)
        for entry in fields(RequestMetrics)
        if entry.name.endswith("_tokens") or entry.name == "num_drafts"
    }
    pairs = zip_longest(first.num_accepted_tokens_per_pos, then.num_accepted_tokens_per_pos, fillvalue=0)
    return replace(
        then,
        **counts | {"num_cached_tokens": first.num_cached_tokens},
        num_accepted_tokens_per_pos=tuple(map(sum, pairs)),
        prefill_density=min(first.prefill_density, then.prefill_density),
        is_lossy=first.is_lossy or then.is_lossy,
    )
