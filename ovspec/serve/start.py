"""The start of a server: refusals first, then the model, then the routes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from ovspec.adapters.adapter_config import AdapterConfig
from ovspec.serve.app import Server
from ovspec.serve.backend import Backend
from ovspec.serve.request_log import log_to_stderr
from ovspec.serve.served_model import ServedModel, read_template
from ovspec.serve.server import bind, serve
from ovspec.serve.server_limits import ServerLimits


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How a model is served.

    Attributes:
        host: address to listen on.
        port: 0 takes a free one.
        keys: one of them must come with a request; none: everybody is served.
        origins: of pages in browsers that may call.
        chat_template: file with a template in place of the model's.
        log_level: a name of uvicorn's.
        allowed_local_media_path: folder whose files messages may name as pictures; `None`: none.
        strict_fields: whether a body with a field that nobody knows is refused.
    """

    host: str
    port: int
    keys: Sequence[str]
    origins: Sequence[str]
    name: str
    chat_template: Path | None
    limits: ServerLimits
    log_level: str
    strict_fields: bool = False
    allowed_local_media_path: Path | None = None


def start(
    settings: ServerSettings,
    folder: Path,
    backend: AbstractContextManager[Backend],
    adapters: Mapping[str, AdapterConfig] | None = None,
) -> None:
    """Serve until a signal comes.

    Args:
        backend: answers; it is entered when the port is taken.
        adapters: as of `ServedModel`.

    Raises:
        ValueError: a setting that can't be served, or a port that is in use.
    """
    if any(not key or not key.isascii() or key != key.strip() for key in settings.keys):
        raise ValueError("--api-key: expected ASCII characters without spaces around them; give another key")
    template = read_template(settings.chat_template)
    listening = bind(settings.host, settings.port)
    with listening, backend as opened:
        pictures = settings.allowed_local_media_path
        model = ServedModel(opened.requests, folder, settings.name, template, adapters, pictures)
        host, port = listening.getsockname()[:2]
        hosts = ("localhost", "127.0.0.1", "::1", host) if ip_address(host).is_loopback else ()
        server = Server(model, opened, settings.limits, settings.strict_fields)
        app = server.app(settings.keys, settings.origins, hosts)
        shown = f"[{host}]" if ":" in host else host
        print(f"ovspec: serving {model.name} on http://{shown}:{port}", file=sys.stderr, flush=True)
        log_to_stderr(settings.log_level)
        limits = settings.limits
        serve(app, listening, limits.request_timeout, limits.client_timeout, settings.log_level)
