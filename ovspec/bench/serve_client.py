"""One streamed request to a server with OpenAI's interface, with the times of its chunks."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

from ovspec_models.folder.shown import cut

# Seconds without any data after which a request has failed.
_SILENCE = 600.0


@dataclass(slots=True)
class Timing:
    """What one request took.

    Attributes:
        started: when it was sent, seconds, as all times.
        arrivals: when each chunk with text came.
        lengths: characters of each.
        ended: when the stream ended.
        text: the answer.
        num_prompt_tokens: as the server counts.
        num_tokens: of the answer, as the server counts; 0 where it does not say.
        complete: whether the stream came to its end, `[DONE]` or the reason of the last choice.
        metrics: the server's own, in the form of vLLM; empty where it sends none.
        error: why there is no answer; empty where there is one.
    """

    started: float
    arrivals: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    ended: float = 0.0
    text: str = ""
    num_prompt_tokens: int = 0
    num_tokens: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    complete: bool = False

    @property
    def ttft(self) -> float:
        """Time to the first text."""
        return self.arrivals[0] - self.started

    @property
    def e2el(self) -> float:
        """Time to the end of the answer."""
        return self.ended - self.started

    @property
    def tpot(self) -> float:
        """Time from the first text to the last, by the tokens after the first."""
        return (self.arrivals[-1] - self.arrivals[0]) / max(1, self.num_tokens - 1)

    @property
    def chunk_gaps(self) -> list[float]:
        """Times between chunks."""
        return [later - earlier for earlier, later in zip(self.arrivals, self.arrivals[1:], strict=False)]

    @property
    def token_gaps(self) -> list[float]:
        """Times between tokens: a chunk's gap, shared among its tokens.

        Servers do not say how many tokens a chunk has; they are counted by its share of the characters.
        Empty where the server does not count tokens.
        """
        gaps: list[float] = []
        if not self.num_tokens:
            return gaps
        per_character = self.num_tokens / max(1, sum(self.lengths))
        for gap, length in zip(self.chunk_gaps, self.lengths[1:], strict=True):
            tokens = max(1, round(length * per_character))
            gaps += [gap / tokens] * tokens
        return gaps


class ServeClient:
    """Sends requests to a server; `base_url` is with or without `/v1`.

    Raises:
        ValueError: no address of a server.
    """

    def __init__(self, base_url: str, key: str | None = None) -> None:
        self._url: SplitResult = urlsplit(base_url)
        if self._url.scheme not in ("http", "https") or not self._url.hostname:
            raise ValueError(f"--base-url {base_url}: expected an address such as http://127.0.0.1:8000")
        try:
            _ = self._url.port
        except ValueError as error:
            raise ValueError(f"--base-url {base_url}: {error}; give another port") from None
        self._path = self._url.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def model(self) -> str:
        """The first model that the server has.

        Raises:
            ValueError: it does not answer, or has none.
        """
        try:
            with self._connection() as connection:
                connection.request("GET", f"{self._path}/v1/models", headers=self._headers)
                answer = connection.getresponse()
                body = answer.read()
            if answer.status != 200:
                raise ValueError(f"{self._url.geturl()}/v1/models: {answer.status} {_message(body)}")
            return str(json.loads(body)["data"][0]["id"])
        except (OSError, http.client.HTTPException) as error:
            raise ValueError(
                f"--base-url {self._url.geturl()}: no server answers ({error}); start it"
            ) from error
        except (KeyError, IndexError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(
                f"--base-url {self._url.geturl()}: no list of models in /v1/models; give --model"
            ) from error

    def measure(self, path: str, body: Mapping[str, Any]) -> Timing:
        """Send one request with `stream`, and read its answer to the end."""
        timing = Timing(time.perf_counter())
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        try:
            with self._connection() as connection:
                connection.request("POST", self._path + path, json.dumps(asked).encode(), self._headers)
                answer = connection.getresponse()
                if answer.status != 200:
                    timing.error = f"{answer.status} {_message(answer.read())}"
                else:
                    _read(timing, answer)
        except (OSError, http.client.HTTPException, ValueError) as error:
            timing.error = f"{type(error).__name__}: {error}"
        timing.ended = time.perf_counter()
        if not timing.error and not timing.complete:
            timing.error = "the stream broke off before [DONE]"
        if not timing.error and not timing.arrivals:
            timing.error = "the stream had no text"
        return timing

    def _connection(self) -> closing[http.client.HTTPConnection]:
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        assert self._url.hostname is not None
        return closing(kind(self._url.hostname, self._url.port, timeout=_SILENCE))


def _read(timing: Timing, answer: http.client.HTTPResponse) -> None:
    # A connection that breaks looks like an end here: only the stream itself says that it is whole.
    for line in answer:
        if line.startswith(b"data:"):
            data = line[5:].strip()
            if data == b"[DONE]":
                timing.complete = True
                return
            event = json.loads(data)
            if not isinstance(event, dict):
                timing.error = f"an event is no object: {cut(data.decode())}"
                return
            _take(timing, event)


def _take(timing: Timing, event: dict[str, Any]) -> None:
    if error := event.get("error"):
        timing.error = str(error.get("message", error) if isinstance(error, dict) else error)
    for choice in event.get("choices") or ():
        timing.complete |= bool(choice.get("finish_reason"))
        piece = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
        if piece:
            timing.arrivals.append(time.perf_counter())
            timing.lengths.append(len(piece))
            timing.text += piece
    usage = event.get("usage") or {}
    timing.num_tokens = usage.get("completion_tokens") or timing.num_tokens
    timing.num_prompt_tokens = usage.get("prompt_tokens") or timing.num_prompt_tokens
    timing.metrics = event.get("metrics") or timing.metrics


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")
