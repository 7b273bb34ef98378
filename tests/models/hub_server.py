"""A hub of one process: the routes that huggingface_hub asks for, with the faults of a network."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

_INFO = re.compile(r"/api/models/([\w.-]+/[\w.-]+)(?:/revision/(.+))?$")
_FILE = re.compile(r"/([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)$")


@dataclass
class Hub:
    """What the server has, and what it was asked for.

    Attributes:
        files: of every repository, by name.
        gated: repositories for those who took their terms.
        private: those that need a token.
        cut_after: bytes of a file behind which a connection breaks; each time that one begins anew.
        asked: every request, in order.
    """

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    private: set[str] = field(default_factory=set)
    cut_after: int | None = None
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def commit(self, repository: str) -> str:
        """The only revision, by what is in it."""
        held = self.files[repository]
        return hashlib.sha1(b"".join(name.encode() + held[name] for name in sorted(held))).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, *args: object) -> None:
        pass

    def _answer(self, body: bool) -> None:
        self.hub.asked.append(f"{self.command} {self.path}")
        if found := _INFO.match(self.path.split("?")[0]):
            self._info(*found.groups())
        elif found := _FILE.match(self.path):
            self._file(*found.groups(), body=body)
        else:
            self._refuse(404, "EntryNotFound")

    def _refused(self, repository: str, revision: str | None) -> bool:
        hub = self.hub
        if repository in hub.gated:
            self._refuse(403, "GatedRepo")
        elif repository not in hub.files or repository in hub.private:
            self._refuse(401, "RepoNotFound")
        elif revision not in (None, "main", hub.commit(repository)):
            self._refuse(404, "RevisionNotFound")
        else:
            return False
        return True

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": code})

    def _info(self, repository: str, revision: str | None) -> None:
        if not self._refused(repository, revision):
            names = [{"rfilename": name} for name in self.hub.files[repository]]
            about = {"id": repository, "sha": self.hub.commit(repository), "siblings": names}
            self._send(200, json.dumps(about).encode(), {"Content-Type": "application/json"})

    def _file(self, repository: str, revision: str, name: str, body: bool) -> None:
        if self._refused(repository, revision):
            return
        content = self.hub.files[repository][name]
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Repo-Commit": self.hub.commit(repository),
            "Accept-Ranges": "bytes",
        }
        first = 0
        if found := re.match(r"bytes=(\d+)-", self.headers.get("Range", "")):
            first = int(found[1])
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        self._send(206 if first else 200, content[first:], headers, body)

    def _send(self, status: int, content: bytes, headers: dict[str, str], body: bool = True) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        limit = self.hub.cut_after
        if body and limit is not None and len(content) > limit:
            self.wfile.write(content[:limit])
            self.close_connection = True
        elif body and self.command != "HEAD":
            self.wfile.write(content)


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub that answers while the block runs."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
