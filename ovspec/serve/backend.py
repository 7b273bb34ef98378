"""What a server answers with: an engine in its process, or the replicas of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ovspec.engine.engine_thread import OnOutput
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.requests.request import Request
from ovspec.pipeline.loaded_pipeline import LoadedPipeline
from ovspec.pipeline.outline import Outline
from ovspec.serve.idle_model import IdleModel


class Answers(Protocol):
    """Answers requests; an `EngineThread` is one."""

    @property
    def lives(self) -> bool:
        """Whether requests are taken and answered."""

    def submit(self, request: Request, on_output: OnOutput) -> object:
        """Take a request. `on_output` is called with every output, and must return at once.

        Raises:
            ValueError: a request that can never be answered.
            RuntimeError: no more requests are taken.
        """

    def abort(self, ids: Sequence[str]) -> None:
        """End requests soon; those that have ended are no error."""


@dataclass(frozen=True, slots=True)
class Backend:
    """What a server answers with.

    Attributes:
        requests: makes the settings of requests.
        gauges: figures of now, by the names that Prometheus reads.
    """

    requests: Outline
    answers: Answers
    gauges: Mapping[str, Callable[[], float]]


def started(load: Callable[[], LoadedPipeline], max_num_seqs: int) -> LoadedPipeline:
    """A pipeline that is ready for as many requests at a time."""
    pipeline = load()
    pipeline.engine.engine.max_num_seqs = max_num_seqs
    pipeline.engine.engine.warm_up()
    return pipeline


@contextmanager
def in_this_process(load: Callable[[], LoadedPipeline], max_num_seqs: int) -> Iterator[Backend]:
    """One pipeline, until the block ends."""
    pipeline = started(load, max_num_seqs)
    engine = pipeline.engine.engine
    gauges = {
        "num_requests_running": lambda: engine.num_requests_running,
        "num_requests_waiting": lambda: engine.num_requests_waiting,
        "kv_cache_usage_perc": lambda: engine.kv_cache_usage,
    }
    try:
        yield Backend(pipeline, pipeline.engine, gauges)
    finally:
        pipeline.engine.close(finish=False)


@contextmanager
def unloaded_when_idle(
    load: Callable[[], LoadedPipeline], outline: Outline, max_num_seqs: int, seconds: float
) -> Iterator[Backend]:
    """One pipeline, until the block ends; it is freed after `seconds` without a request, and loaded again.

    Args:
        outline: of it.
    """
    model = IdleModel(partial(started, load, max_num_seqs), seconds)

    def of_engine(figure: Callable[[LLMEngine], float]) -> float:
        engine = model.engine
        return 0.0 if engine is None else figure(engine)

    gauges = {
        "num_requests_running": lambda: of_engine(lambda engine: engine.num_requests_running),
        "num_requests_waiting": lambda: (
            model.num_waiting + of_engine(lambda engine: engine.num_requests_waiting)
        ),
        "kv_cache_usage_perc": lambda: of_engine(lambda engine: engine.kv_cache_usage),
    }
    try:
        yield Backend(outline, model, gauges)
    finally:
        model.close()
