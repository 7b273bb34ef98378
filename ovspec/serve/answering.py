"""The requests of one call, from their submission to the end of their answers."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Sequence
from functools import partial
from types import TracebackType

from starlette.requests import ClientDisconnect

from ovspec.engine.requests.request import Request
from ovspec.errors import EngineClosedError, InvalidValueError, NoRoomError
from ovspec.serve.backend import Answers
from ovspec.serve.counts import AnswerClock
from ovspec.serve.output.choice import Choice, Delta
from ovspec.serve.requests.api_error import ApiError
from ovspec.serve.requests.bodies import ChatBody, CompletionBody
from ovspec.serve.server_limits import Slot
from ovspec.serve.stream import Mailbox, OutputStream

_LOG = logging.getLogger(__name__)
_BODIES = (ChatBody, CompletionBody)


class Answering:
    """Submits requests and reads their outputs; whatever still runs at the end is aborted.

    Args:
        choices: the same number for each request, those of a request together.
        clocks, slots: one per request.
        seconds: for all of it.
    """

    def __init__(
        self,
        engine: Answers,
        mailbox: Mailbox,
        requests: Sequence[Request],
        choices: Sequence[Choice],
        clocks: Sequence[AnswerClock],
        slots: Sequence[Slot],
        seconds: float,
    ) -> None:
        self._engine, self._mailbox = engine, mailbox
        self._requests, self._choices, self._seconds = requests, choices, seconds
        self._ready: asyncio.Queue[OutputStream | Exception] = asyncio.Queue()
        self._timer: asyncio.TimerHandle | None = None
        self._running: set[str] = set()
        self._streams = [
            OutputStream(index, self._ready, clock, slot)
            for index, (clock, slot) in enumerate(zip(clocks, slots, strict=True))
        ]

    async def __aenter__(self) -> Answering:
        late = ApiError(
            504, f"the answer took longer than {self._seconds:g} s; ask for fewer tokens", code="timeout"
        )
        # One timer for the whole answer: one for each token would take as long as the token's text.
        loop = asyncio.get_running_loop()
        try:
            self._timer = loop.call_later(self._seconds, self._ready.put_nowait, late)
            for request, stream in zip(self._requests, self._streams, strict=True):
                self._running.add(request.request_id)
                self._engine.submit(request, partial(self._mailbox.post, stream))
        except BaseException as error:
            self._end()
            if isinstance(error, Exception):
                raise refusal(error) from error
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for stream in self._streams:
            stream.slot.free()
        try:
            if self._running:
                self._engine.abort(list(self._running))
        finally:
            for stream in self._streams:
                stream.clock.end("abort")

    def hang_up(self) -> None:
        """The client has gone: `deltas` ends with `ClientDisconnect`."""
        self._ready.put_nowait(ClientDisconnect())

    async def deltas(self) -> AsyncIterator[tuple[int, Delta]]:
        """New parts of the answers, each with the index of its choice, until all have ended.

        Raises:
            ClientDisconnect: the client has gone.
            ApiError: 504 when the time is over; 500 when the engine gave a request up.
        """
        unfinished = len(self._choices)
        while unfinished:
            stream = await self._ready.get()
            if isinstance(stream, Exception):
                raise stream
            output = stream.take()
            request_id = self._requests[stream.index].request_id
            if output.finished:
                self._running.discard(request_id)
            width = len(self._choices) // len(self._requests)
            for index, own in enumerate(output.answers, stream.index * width):
                choice = self._choices[index]
                if choice.finish_reason is not None:
                    continue  # a stop string has ended it: what its request did since is nobody's
                if output.error is not None:
                    raise refusal(output.error) from output.error
                delta = await asyncio.to_thread(choice.add, own) if choice.echoes else choice.add(own)
                if delta.finish_reason is not None:
                    unfinished -= 1
                    stream.clock.end(delta.finish_reason)
                    if request_id in self._running:
                        # A stop string: the engine knows tokens only.
                        self._running.discard(request_id)
                        self._engine.abort([request_id])
                yield index, delta


def refusal(error: Exception) -> ApiError:
    """What a client is told about a request that the engine did not take, or gave up.

    Only what names the client's own value is the client's fault.
    """
    if isinstance(error, InvalidValueError):
        code = "context_length_exceeded" if isinstance(error, NoRoomError) else None
        # The engine knows its own names, of which most are the body's.
        message = re.sub(r"^num_return_sequences\b", "n", str(error))
        named = re.match(r"\w+(?=[=:.])", message)
        param = named[0] if named and any(named[0] in kind.model_fields for kind in _BODIES) else None
        return ApiError(400, message, param, code)
    _LOG.error("ovspec: a request failed", exc_info=error)
    if isinstance(error, EngineClosedError):
        return ApiError(503, f"{error}; try again later", code="engine_closed")
    return ApiError(500, f"the engine failed: {type(error).__name__}", code="engine_error")
