"""One line for every request on standard error, without what its client wrote."""

from __future__ import annotations

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Where in the scope of a request its `Call` stands, once there is one.
CALL = "ovspec.call"
_LOG = logging.getLogger("ovspec")
_TRACE = 5  # uvicorn's number; below it logging has no name
# Characters of a path.
_LONGEST = 200


def log_to_stderr(level: str) -> None:
    """Write what this process logs to standard error, from a level of uvicorn's on."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    _LOG.handlers = [handler]
    _LOG.setLevel(_TRACE if level == "trace" else level.upper())


class RequestLog:
    """Logs method, path and status, tokens in and out, seconds, and the id of the answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and log it when it has ended."""
        if scope["type"] != "http" or not _LOG.isEnabledFor(logging.INFO):
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), "gone"  # the client went before it had an answer

        async def send_and_see(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, send_and_see)
        finally:
            # As it was sent, so that no line break of a client is one of the log.
            path = scope.get("raw_path", b"").decode("latin-1")[:_LONGEST]
            seconds = f"{time.perf_counter() - began:.3f} s"
            _LOG.info("%s %s %s, %s", scope["method"], path, status, ", ".join(_parts(scope, seconds)))


def _parts(scope: Scope, seconds: str) -> list[str]:
    if (call := scope.get(CALL)) is None:
        return [seconds]
    tokens = sum(choice.num_tokens for choice in call.choices)
    return [f"{call.num_prompt_tokens} tokens in", f"{tokens} out", seconds, call.objects.id]
