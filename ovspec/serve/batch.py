"""A batch of requests on one engine, without HTTP."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ovspec.adapters.adapter_config import AdapterConfig
from ovspec.engine.engine_thread import EngineThread
from ovspec.engine.requests.request import RequestOutput
from ovspec.pipeline.loaded_pipeline import LoadedPipeline
from ovspec.serve.answering import refusal
from ovspec.serve.batch_file import BatchEntry
from ovspec.serve.calls import Call
from ovspec.serve.output.choice import Delta
from ovspec.serve.requests.api_error import ApiError
from ovspec.serve.requests.bodies import ChatBody, CompletionBody, GenerationBody
from ovspec.serve.served_model import ServedModel
from ovspec_models.folder.shown import shown

_BODIES: dict[str, type[GenerationBody]] = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
}
Write = Callable[[str, int, dict[str, Any]], None]


@dataclass(slots=True)
class _Running:
    """An entry in work."""

    entry: BatchEntry
    call: Call
    deltas: list[Delta]

    @property
    def ended(self) -> bool:
        return all(choice.finish_reason is not None for choice in self.call.choices)


class Batch:
    """Answers the entries of a batch, in the order in which they end.

    An entry that the engine could not answer, by no fault of the entry's, is tried again alone at the end.
    What fails then too is not written, so that a later run tries it.

    Args:
        write: takes name, status and body of every answer.
        ahead: answers that the engine knows of at a time, so that it never waits for the next one.
    """

    def __init__(self, model: ServedModel, engine: EngineThread, write: Write, ahead: int) -> None:
        self._model, self._engine, self._write, self._ahead = model, engine, write, ahead
        self._outputs: queue.SimpleQueue[RequestOutput] = queue.SimpleQueue()
        self._running: dict[str, tuple[_Running, int]] = {}
        self._failed: list[BatchEntry] = []

    def run(self, entries: Iterable[BatchEntry]) -> int:
        """Answer all entries; how many were tried again.

        Raises:
            RuntimeError: the engine has ended; what is written stays.
        """
        try:
            self._answer(entries, self._ahead)
            again, self._failed = self._failed, []
            self._answer(again, 1)
            return len(again)
        finally:
            if self._running:
                self._engine.abort(list(self._running))

    def _answer(self, entries: Iterable[BatchEntry], ahead: int) -> None:
        left = iter(entries)
        while self._fill(left, ahead):
            self._take(self._outputs.get())

    def _fill(self, left: Iterator[BatchEntry], ahead: int) -> bool:
        """Submit entries until enough are in work; return whether any is."""
        while len(self._running) < ahead:
            entry = next(left, None)
            if entry is None:
                break
            try:
                self._submit(entry)
            except ApiError as error:
                self._refuse(entry, error)
        return bool(self._running)

    def _refuse(self, entry: BatchEntry, error: ApiError) -> None:
        """Write what is wrong with an entry; what is wrong here is none of its answers."""
        if error.status < 500:
            self._write(entry.custom_id, error.status, error.body())
            return
        if not self._engine.lives:
            raise RuntimeError(f"{entry.custom_id}: {error.message}") from error
        self._failed.append(entry)

    def _submit(self, entry: BatchEntry) -> None:
        if entry.url not in _BODIES:
            known = ", ".join(_BODIES)
            raise ApiError(404, f"url={shown(entry.url)}: no such path; known are {known}", "url")
        try:
            data = json.dumps(entry.body).encode()
        except RecursionError as error:
            raise ApiError(400, f"body: it is nested too deeply ({error}); send a flat one", "body") from None
        body = _BODIES[entry.url].parse(data)
        if body.stream:
            raise ApiError(400, "stream: a batch has no streams; leave it out", "stream")
        call = Call.of(body, self._model, time.perf_counter())
        running = _Running(entry, call, [Delta() for _ in call.choices])
        for index, request in enumerate(call.requests):
            self._running[request.request_id] = running, index
        for request in call.requests:
            try:
                self._engine.submit(request, self._outputs.put)
            except Exception as error:
                self._forget(running)
                raise refusal(error) from error

    def _take(self, output: RequestOutput) -> None:
        running, index = self._running.get(output.request_id, (None, 0))
        if running is None:
            return  # of a request that a stop string ended
        if output.error is not None:
            self._forget(running)
            self._refuse(running.entry, refusal(output.error))
            return
        call = running.call
        width = len(call.choices) // len(call.requests)
        for place, own in enumerate(output.answers, index * width):
            delta = call.choices[place].add(own)
            running.deltas[place].extend(delta)
        if delta.finish_reason is not None:
            del self._running[output.request_id]
            if not output.finished:
                self._engine.abort([output.request_id])
        if running.ended:
            self._write(running.entry.custom_id, 200, running.call.whole(running.deltas))

    def _forget(self, running: _Running) -> None:
        ids = [request.request_id for request in running.call.requests]
        self._engine.abort(ids)
        for request_id in ids:
            self._running.pop(request_id, None)


class BatchModel:
    """A pipeline that answers batches, from any number of threads; `name` is what they call its model."""

    def __init__(
        self,
        load: Callable[[], LoadedPipeline],
        folder: Path,
        name: str,
        chat_template: str | None,
        max_num_seqs: int,
        adapters: Mapping[str, AdapterConfig] | None = None,
    ) -> None:
        pipeline = load()
        self._model = ServedModel(pipeline, folder, name, chat_template, adapters)
        self._engine, self._ahead = pipeline.engine, 2 * max_num_seqs
        self._engine.engine.max_num_seqs = max_num_seqs

    def answer(self, entries: Iterable[BatchEntry], write: Write) -> int:
        """Answer entries; `write` takes name, status and body of each as it ends. How many were tried again.

        Raises:
            RuntimeError: the engine has ended.
        """
        return Batch(self._model, self._engine, write, self._ahead).run(entries)

    def close(self) -> None:
        """End the engine."""
        self._engine.close(finish=False)
