"""The process: a socket, uvicorn on it, and an end that finishes what runs."""

from __future__ import annotations

import contextlib
import errno
import functools
import signal
import socket
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

_BACKLOG = 1024
_SEND_BUFFER = 128 * 1024


def bind(host: str, port: int) -> socket.socket:
    """A socket for the server, before a model is loaded for it.

    Raises:
        ValueError: the port is in use or not allowed, or the host is none of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise ValueError(f"--host {host}: no such host ({error}); give an address") from error
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # What the system holds for a client that does not read; connections inherit it.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        made.bind(address)
        # Clients that come while the model loads wait for it; a second server is refused at once.
        made.listen(_BACKLOG)
    except OSError as error:
        made.close()
        raise ValueError(_why_not(error, host, port)) from error
    return made


def _why_not(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"--port {port} is in use on {host}: end the other server, or give another port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host}: is no address of this machine; give one, or 0.0.0.0 for all"
    return f"--host {host} --port {port}: {error.strerror}; give another port"


class _Protocol(H11Protocol):
    """Ends a connection that sends no request, or does not read the end of an answer.

    uvicorn waits without limit for the first header, for a body that nobody wants any more, and for a
    client to take what is left when it closes the connection.

    Args:
        seconds: without progress outside of a request in work; it ends after one to two times that.
    """

    def __init__(self, *args: Any, seconds: float, **named: Any) -> None:
        super().__init__(*args, **named)
        self._seconds = seconds
        self._seen: object = None

    def connection_made(self, transport: Any) -> None:
        """Begin to look."""
        super().connection_made(transport)
        self._look_later()

    def connection_lost(self, exc: Exception | None) -> None:
        """Look no more."""
        self._timer.cancel()
        super().connection_lost(exc)

    def _look_later(self) -> None:
        self._timer = self.loop.call_later(self._seconds, self._look)

    def _look(self) -> None:
        works = self.cycle is not None and not self.cycle.response_complete
        idle = not works or self.transport.is_closing()
        now = (self.cycle, self.transport.get_write_buffer_size()) if idle else None
        if idle and now == self._seen:
            self.transport.abort()
            return
        self._seen = now
        self._look_later()


class _Uvicorn(uvicorn.Server):
    """Ends on SIGINT and SIGTERM, and does not send itself the signal again when it has ended."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while the server runs."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        wanted = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self._on_signal) for number in wanted}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # The second time, what still runs is not waited for.
        self.force_exit = self.should_exit
        self.should_exit = True


def serve(
    app: ASGIApp, listening: socket.socket, grace_seconds: float, client_seconds: float, log_level: str
) -> None:
    """Serve until SIGINT or SIGTERM, then finish what runs.

    Args:
        listening: from `bind`.
        grace_seconds: after which what still runs is given up; a second signal gives it up at once.
        client_seconds: after which a connection without progress is ended.
        log_level: a name of uvicorn's; its own lines about each start begin with debug.
    """
    config = uvicorn.Config(
        app,
        http=functools.partial(_Protocol, seconds=client_seconds),  # type: ignore[arg-type]
        log_level="warning" if log_level == "info" else log_level,
        access_log=False,  # `RequestLog` knows more
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=max(1, round(grace_seconds)),
        # A request to come may wait on a connection; a client that reuses one sees a clean end.
        timeout_keep_alive=30,
    )
    _Uvicorn(config).run(sockets=[listening])
