"""Answers over HTTP: whole, or as a stream of server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from ovspec.serve.answering import Answering
from ovspec.serve.backend import Answers
from ovspec.serve.calls import Call
from ovspec.serve.counts import AnswerClock, Counts
from ovspec.serve.output.choice import Delta
from ovspec.serve.output.objects import Json
from ovspec.serve.requests.api_error import ApiError
from ovspec.serve.server_limits import Admission, ServerLimits, Slot
from ovspec.serve.stream import Mailbox


class Answerer:
    """Answers calls with one engine.

    Attributes:
        in_work: calls that the engine answers now; those that are still read do not count.
    """

    def __init__(self, engine: Answers, limits: ServerLimits, counts: Counts) -> None:
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
        if call.requests[0].prompt_logprobs is not None:  # of a prompt that may be long
            return await asyncio.to_thread(lambda: JSONResponse(call.whole(wholes)))
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
            await _send(send, self._call.objects.failed(error))
        else:
            await self._send(send, *self._last_events())
        await send({"type": "http.response.body", "body": self._call.objects.done, "more_body": False})

    async def _send(self, send: Send, *events: Json) -> None:
        if not self._is_open:
            self._is_open = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            begin = self._call.objects.begin(len(self._call.choices))
            events = (*map(self._without_usage, begin), *events)
        if events:
            await _send(send, *map(self._call.objects.encoded, events))

    def _events(self, index: int, delta: Delta) -> list[Json]:
        call = self._call
        events = call.objects.chunk(index, delta)
        for event in events:
            if call.body.return_token_origins:
                event["metrics"] = call.metrics
            self._without_usage(event)
            if call.body.return_blocks_read:
                event["blocks_read"] = delta.blocks_read
        return events

    def _without_usage(self, event: Json) -> Json:
        """An event of a stream whose last chunk has the usage, if it is asked for."""
        if self._with_usage:
            event["usage"] = None
        return event

    @property
    def _with_usage(self) -> bool:
        options = self._call.body.stream_options
        return options is not None and options.include_usage

    def _last_events(self) -> list[Json]:
        call = self._call
        return call.objects.end(call.choices, call.usage, call.metrics, self._with_usage)


async def _send(send: Send, *events: bytes) -> None:
    await send({"type": "http.response.body", "body": b"".join(events), "more_body": True})
