"""Answers over HTTP: whole, or as a stream of server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from ovspec.serve.answering import Answering
from ovspec.serve.api_error import ApiError
from ovspec.serve.backend import Answers
from ovspec.serve.calls import Call
from ovspec.serve.choice import Delta
from ovspec.serve.counts import AnswerClock, Counts
from ovspec.serve.limits import Admission, Limits, Slot
from ovspec.serve.objects import Json
from ovspec.serve.stream import Mailbox

_DONE = b"data: [DONE]\n\n"
_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Answerer:
    """Answers calls with one engine.

    Attributes:
        in_work: calls that the engine answers now; those that are still read do not count.
    """

    def __init__(self, engine: Answers, limits: Limits, counts: Counts) -> None:
        self._engine, self._limits, self._counts = engine, limits, counts
        self._mailbox: Mailbox | None = None
        self.admission = Admission(limits)
        self.in_work = 0

    async def answer(self, call: Call, slots: Sequence[Slot], http: HttpRequest) -> Response:
        """The response to a call; that of a stream runs when it is sent.

        Args:
            slots: of its answers; they are free when it ends.

        Raises:
            ApiError: the engine refused or failed.
            ClientDisconnect: the client has gone.
        """
        if call.body.stream:
            return StreamedAnswer(self, call, slots)
        async with self.answering(call, slots, http.receive) as answering:
            wholes = [Delta() for _ in call.choices]
            async for index, delta in answering.deltas():
                wholes[index].extend(delta)
        return JSONResponse(call.whole(wholes))

    @asynccontextmanager
    async def answering(
        self, call: Call, slots: Sequence[Slot], receive: Receive
    ) -> AsyncIterator[Answering]:
        """The call in work, until its end or until the client has gone."""
        if self._mailbox is None:
            self._mailbox = Mailbox(asyncio.get_running_loop())
        clocks = [AnswerClock(self._counts, request) for request in call.requests]
        seconds = self._limits.request_timeout
        made = Answering(self._engine, self._mailbox, call.requests, call.choices, clocks, slots, seconds)
        async with made as answering:
            watcher = asyncio.create_task(_watch(receive, answering))
            self.in_work += 1
            try:
                yield answering
            finally:
                self.in_work -= 1
                watcher.cancel()
        self.admission.observe(max(clock.seconds for clock in clocks))


async def _watch(receive: Receive, answering: Answering) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
    answering.hang_up()


class StreamedAnswer(Response):
    """A call's answer as server-sent events.

    Nothing is sent before the first output, so that what the engine refuses has a status of its own.
    """

    def __init__(self, answerer: Answerer, call: Call, slots: Sequence[Slot]) -> None:
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        del self.headers["content-length"]
        self._answerer, self._call, self._slots = answerer, call, slots
        self._is_open = False
        # Written once: it is longer than what is new in a chunk of one token.
        self._begin = f"data: {_to_json(call.objects.fields)[:-1]},".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        try:
            async with self._answerer.answering(self._call, self._slots, receive) as answering:
                async for index, delta in answering.deltas():
                    await self._send(send, *self._events(index, delta))
        except ApiError as error:
            if not self._is_open:
                await error.response()(scope, receive, send)
                return
            await _send(send, b"data: " + _to_json(error.body()).encode())
        else:
            await self._send(send, *self._last_events())
        await send({"type": "http.response.body", "body": _DONE, "more_body": False})

    async def _send(self, send: Send, *events: Json) -> None:
        if not self._is_open:
            self._is_open = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            first = [self._call.objects.first(index) for index in range(len(self._call.choices))]
            events = (*(event for event in first if event is not None), *events)
        if events:
            await _send(send, *(self._begin + _to_json(event)[1:].encode() for event in events))

    def _events(self, index: int, delta: Delta) -> list[Json]:
        call = self._call
        shows = delta.text or delta.finish_reason or delta.logprobs or delta.pieces
        if not shows:
            return []  # part of a character, or what may become a stop string
        event = call.objects.chunk(index, delta)
        if call.body.return_token_origins:
            event["metrics"] = call.metrics
        if call.body.stream_options is not None and call.body.stream_options.include_usage:
            event["usage"] = None  # it is in the last chunk
        if call.body.return_blocks_read:
            event["blocks_read"] = delta.blocks_read
        return [event]

    def _last_events(self) -> list[Json]:
        call = self._call
        if call.body.stream_options is None or not call.body.stream_options.include_usage:
            return []
        return [call.objects.usage_chunk(call.usage, call.metrics)]


async def _send(send: Send, *events: bytes) -> None:
    body = b"".join(event + b"\n\n" for event in events)
    await send({"type": "http.response.body", "body": body, "more_body": True})
