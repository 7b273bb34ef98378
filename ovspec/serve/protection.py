"""What stands before every route: keys, names of the host, bodies of a limited size that come in time."""

from __future__ import annotations

import asyncio
import hmac
import math
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ovspec.serve.requests.api_error import ApiError
from ovspec.serve.server_limits import ServerLimits

# The page's files have no secrets; the page asks its reader for the key.
OPEN_PATHS, _PAGE = ("/", "/health", "/ping"), "/page/"
_OF_THE_TOKENIZER = ("/tokenize", "/detokenize")
# Seconds: a client asks ten times a second at most then.
_PATIENCE = 0.1
# Multiples of the longest body up to which one that is too long is read, and thrown away.
_DISCARDED = 4


class KeyCheck:
    """Lets requests pass that carry one of the keys."""

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 401."""
        if scope["type"] == "http" and not _is_open(scope["path"]) and not self._knows(scope):
            error = ApiError(401, "the API key is missing or wrong; send `Authorization: Bearer KEY`")
            await error.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        kind, _, given = header.partition(b" ")
        # Every key is compared, each in constant time.
        same = [hmac.compare_digest(given.strip(), key) for key in self._keys]
        return kind.lower() == b"bearer" and any(same)


def _is_open(path: str) -> bool:
    """Whether a path is served without a key."""
    return path in OPEN_PATHS or path.startswith(_PAGE)


class HostCheck:
    """Lets requests pass that were sent to one of the names of this machine.

    A page of another site whose name resolves to a loopback address would otherwise be of the server's own
    origin, and read its answers (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app = app
        self._hosts = set(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 400."""
        if scope["type"] == "http":
            sent = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
            if _host_name(sent) not in self._hosts:
                names = ", ".join(sorted(self._hosts))
                error = ApiError(400, f"Host: {sent!r}: without a key this server answers to {names} only")
                await error.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _host_name(sent: str) -> str | None:
    """The name in a `Host` header, without the port; `None` if there is none."""
    try:
        return urlsplit(f"//{sent}").hostname
    except ValueError:
        return None


class Patience:
    """Lets what the model does not answer wait a moment while it answers others.

    A client that is refused, or asks for token ids, would ask again at once, and take the time in which the
    answers of others are written.

    Args:
        is_busy: whether answers are in work.
    """

    def __init__(self, app: ASGIApp, is_busy: Callable[[], bool]) -> None:
        self._app, self._is_busy = app, is_busy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and what is sent back later."""

        async def send_later(message: Message) -> None:
            others = message["type"] == "http.response.start" and self._is_busy()
            if others and (message["status"] >= 400 or scope["path"] in _OF_THE_TOKENIZER):
                await asyncio.sleep(_PATIENCE)
            await send(message)

        await self._app(scope, receive, send_later)


class WriteTimeout:
    """Ends connections whose client does not read.

    A stream that nobody reads fills the buffers of the connection, and the server's `send` waits.

    Args:
        seconds: that a client may take to make room.
    """

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app, self._seconds = app, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and watch what is sent."""
        loop, task, ends = asyncio.get_running_loop(), asyncio.current_task(), math.inf
        assert task is not None

        async def send_in_time(message: Message) -> None:
            nonlocal ends
            ends = loop.time() + self._seconds
            await send(message)
            ends = math.inf

        # One timer for the whole answer: one for each token would take a tenth of the token's time.
        timer: asyncio.TimerHandle

        def look() -> None:
            nonlocal timer
            if (now := loop.time()) >= ends:
                task.cancel()
            else:
                timer = loop.call_at(min(ends, now + self._seconds), look)

        timer = loop.call_later(self._seconds, look)
        try:
            await self._app(scope, receive, send_in_time)
        except (ClientDisconnect, asyncio.CancelledError):
            return  # the latter: the client reads too slowly, or the server ends and waits no longer
        finally:
            timer.cancel()


async def read_body(request: Request, limits: ServerLimits) -> bytes:
    """The JSON body of a request.

    Raises:
        ApiError: 413 too long, 408 too slow, 415 no JSON, 400 two lengths.
    """
    if "transfer-encoding" in request.headers and "content-length" in request.headers:
        # Two servers that go by different ones see different requests in the same bytes.
        raise ApiError(400, "Content-Length and Transfer-Encoding contradict each other: send one of them")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # Pages of other origins can't send this type unless the server allows their origin.
        raise ApiError(415, f"Content-Type {kind!r}: expected application/json")
    message = f"the body is longer than {limits.max_body_bytes} bytes; shorten it"
    too_long = ApiError(413, message, code="body_too_large")
    parts, length = [], 0
    try:
        with anyio.fail_after(limits.client_timeout):
            async for part in request.stream():
                length += len(part)
                if length <= limits.max_body_bytes:
                    parts.append(part)
                else:
                    parts.clear()
                # A connection that is closed while the client still sends loses the answer with it.
                if length > _DISCARDED * limits.max_body_bytes:
                    raise too_long
    except TimeoutError:
        message = f"the body did not come within {limits.client_timeout:g} s; send it faster"
        raise ApiError(408, message, code="timeout") from None
    if length > limits.max_body_bytes:
        raise too_long
    return b"".join(parts)
