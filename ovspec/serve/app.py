"""The routes of the server."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib.resources import files
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from ovspec import __version__
from ovspec.serve.answers import Answerer
from ovspec.serve.backend import Backend
from ovspec.serve.calls import Call, num_answers
from ovspec.serve.chat_requests import ChatRequest
from ovspec.serve.counts import Counts
from ovspec.serve.door import Door
from ovspec.serve.openapi import openapi_document
from ovspec.serve.protection import HostCheck, KeyCheck, Patience, WriteTimeout, read_body
from ovspec.serve.request_log import CALL, RequestLog
from ovspec.serve.requests.api_error import ApiError, answer_with_error
from ovspec.serve.requests.bodies import (
    AnswerBody,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    TokenizeBody,
)
from ovspec.serve.requests.response_bodies import ResponseBody
from ovspec.serve.requests.strict_body import StrictBody
from ovspec.serve.response_objects import call_of_response
from ovspec.serve.served_model import ServedModel, mode_name
from ovspec.serve.server_limits import ServerLimits

_LOG = logging.getLogger(__name__)
_HEALTH_SECONDS = 5.0
# Header of an answer to a body with fields that nobody knows.
IGNORED = "X-Ignored-Fields"
# Last words of paths that other servers have for models of other kinds.
_NOT_SERVED = ("embedding", "embeddings", "rerank", "reranking", "score", "pooling", "classify")
Handler = Callable[[Request], Awaitable[Response]]
Kind = TypeVar("Kind", bound=StrictBody)
Asking = TypeVar("Asking", bound=AnswerBody)


class Server:
    """The handlers of the routes."""

    def __init__(
        self, model: ServedModel, backend: Backend, limits: ServerLimits, strict_fields: bool = False
    ) -> None:
        self._model, self._engine, self._limits = model, backend.answers, limits
        self._strict_fields = strict_fields
        self._counts = Counts(model.name, backend.gauges)
        self._answerer = Answerer(backend.answers, limits, self._counts)
        self._door = Door(self._is_busy)

    def app(
        self, keys: Sequence[str] = (), origins: Sequence[str] = (), hosts: Sequence[str] = ()
    ) -> ASGIApp:
        """The application.

        Args:
            keys: one of these must come with a request; none: everybody is served.
            origins: origins of pages in browsers that may call; none: no other than the server's own.
            hosts: names that the server answers to where it has no key; none: any.
        """
        routes = [
            Route("/", self.page, methods=["GET"]),
            Route("/health", self.health, methods=["GET"]),
            Route("/ping", self.health, methods=["GET"]),
            Route("/version", self.version, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
            Route("/openapi.json", self._described(bool(keys)), methods=["GET"]),
            # OpenVINO Model Server's clients have the second base path.
            *(route for base in ("/v1", "/v3") for route in self._of_openai(base)),
            Mount("/page", StaticFiles(packages=[("ovspec.serve", "page")])),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
        ]
        middleware = [Middleware(WriteTimeout, seconds=self._limits.client_timeout)]
        if origins:
            # Before the keys: a browser asks without one whether it may send one.
            middleware.append(
                Middleware(
                    CORSMiddleware,
                    allow_origins=list(origins),
                    allow_methods=["GET", "POST"],
                    allow_headers=["*"],  # openai-js sends several X-Stainless-...
                    expose_headers=[IGNORED, "Retry-After"],
                )
            )
        if keys:
            middleware.append(Middleware(KeyCheck, keys=list(keys)))
        elif hosts:
            middleware.append(Middleware(HostCheck, hosts=list(hosts)))
        handlers = {ApiError: answer_with_error, HTTPException: _answer_http_error, Exception: _answer_fault}
        app = Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)  # type: ignore[arg-type]
        return RequestLog(Patience(app, self._is_busy))

    def _of_openai(self, base: str) -> list[Route]:
        """The routes of OpenAI's interface."""
        return [
            Route(f"{base}/models", self.models, methods=["GET"]),
            Route(f"{base}/models/{{name:path}}", self.one_model, methods=["GET"]),
            Route(f"{base}/chat/completions", self.chat, methods=["POST"]),
            Route(f"{base}/completions", self.complete, methods=["POST"]),
            Route(f"{base}/responses", self.respond, methods=["POST"]),
        ]

    def _is_busy(self) -> bool:
        """Whether answers are in work."""
        return self._answerer.in_work > 0

    async def page(self, request: Request) -> Response:
        """The page for people."""
        return HTMLResponse(files("ovspec.serve").joinpath("page/index.html").read_text(encoding="utf-8"))

    async def health(self, request: Request) -> Response:
        """Whether requests are taken."""
        # A cluster is asked, which may not answer.
        asked = asyncio.to_thread(lambda: self._engine.lives)
        try:
            lives = await asyncio.wait_for(asked, _HEALTH_SECONDS)
        except asyncio.TimeoutError:
            lives = False
        if not lives:
            raise ApiError(503, "no engine answers; if none comes, restart the server", code="engine_error")
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """Metrics for Prometheus."""
        return Response(self._counts.text(), media_type="text/plain; version=0.0.4")

    def _described(self, needs_key: bool) -> Handler:
        """A handler that answers with the server's own description."""
        document = openapi_document(needs_key, self._strict_fields)

        async def answer(request: Request) -> Response:
            return JSONResponse(document)

        return answer

    async def version(self, request: Request) -> Response:
        """The version of this server."""
        return JSONResponse({"version": __version__})

    async def models(self, request: Request) -> Response:
        """The served model and its adapters."""
        names = (self._model.name, *self._model.adapters)
        return JSONResponse({"object": "list", "data": [self._entry(name) for name in names]})

    async def one_model(self, request: Request) -> Response:
        """The served model, or an adapter, by its name."""
        return JSONResponse(self._entry(self._model.check_name(request.path_params["name"])))

    def _entry(self, name: str) -> dict[str, Any]:
        model = self._model
        adapters = model.adapters.get(name)
        return {
            "id": name,
            "object": "model",
            "created": model.created,
            "owned_by": "ovspec",
            "root": adapters.get_adapters()[0].name if adapters else model.root,
            "parent": model.name if adapters else None,
            "max_model_len": model.max_model_len,
            "verify": mode_name(model.requests.verify),
            "drafts": model.requests.drafts,
            "has_chat_template": bool(model.tokenizer.chat_template),
            "reads_pictures": model.pictures.prompts is not None,
        }

    async def chat(self, request: Request) -> Response:
        """Answer a chat."""
        return await self._answer(request, ChatBody, Call.of)

    async def complete(self, request: Request) -> Response:
        """Continue a text."""
        return await self._answer(request, CompletionBody, Call.of)

    async def respond(self, request: Request) -> Response:
        """Answer a chat whose messages and calls are items."""
        return await self._answer(request, ResponseBody, call_of_response)

    async def _answer(
        self, request: Request, kind: type[Asking], make: Callable[[Asking, ServedModel, float], Call]
    ) -> Response:
        arrived = time.perf_counter()
        body, size = await self._body(request, kind)
        # Its places are taken before any work that a full server would do in vain.
        slots = self._answerer.admission.admit(num_answers(body), body.count_field)
        try:
            work = partial(make, body, self._model, arrived)
            call = await self._door.run(size, work, body.has_grammar, body.has_pictures)
        except BaseException:
            for slot in slots:
                slot.free()
            raise
        request.scope[CALL] = call  # for the log
        return _with_ignored(await self._answerer.answer(call, slots, request), body)

    async def tokenize(self, request: Request) -> Response:
        """Token ids of a text or a chat."""
        body, size = await self._body(request, TokenizeBody)
        self._model.check_name(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise ApiError(400, "prompt: give either prompt or messages", "prompt")
        if (field := body.misplaced) is not None:
            where = "a prompt" if body.prompt is None else "messages"
            raise ApiError(400, f"{field}: is for {where}; leave it out", field)
        work = partial(self._tokens, body)
        return _with_ignored(await self._door.run(size, work, has_pictures=body.has_pictures), body)

    def _tokens(self, body: TokenizeBody) -> Response:
        if body.messages is not None:
            tokens = ChatRequest.of(body.chat(), self._model).prompt
        else:
            assert body.prompt is not None
            tokens = self._model.tokens_of(body.prompt, body.add_special_tokens is not False)
        return JSONResponse(
            {"count": len(tokens), "max_model_len": self._model.max_model_len, "tokens": tokens}
        )

    async def detokenize(self, request: Request) -> Response:
        """The text of token ids."""
        body, size = await self._body(request, DetokenizeBody)
        self._model.check_name(body.model)
        return _with_ignored(await self._door.run(size, partial(self._text, body)), body)

    def _text(self, body: DetokenizeBody) -> Response:
        self._model.check_tokens(body.tokens, "tokens")
        return JSONResponse({"prompt": self._model.text_of(body.tokens)})

    async def _body(self, request: Request, kind: type[Kind]) -> tuple[Kind, int]:
        """The body of a request, and its length in bytes."""
        data = await read_body(request, self._limits)
        body = await self._door.run(len(data), partial(kind.parse, data, self._strict_fields))
        if body.ignored:
            names = ", ".join(body.ignored)
            _LOG.warning("%s: ignored fields that this server does not have: %s", request.url.path, names)
        return body, len(data)


def _with_ignored(response: Response, body: StrictBody) -> Response:
    """A response whose header names the fields that were ignored."""
    if body.ignored:
        names = (name.encode("ascii", "backslashreplace").decode() for name in body.ignored)
        # Clients take some 16 kB of headers.
        response.headers[IGNORED] = ", ".join(name[:80] for name in names)
    return response


async def _answer_http_error(request: Request, error: HTTPException) -> Response:
    """What Starlette refuses, such as an unknown path, in OpenAI's form."""
    path, reason = str(request.scope["path"]), error.detail
    if error.status_code == 404 and path.rpartition("/")[2] in _NOT_SERVED:
        reason = "ovspec serves no embeddings and no rerank; it serves chats, completions and responses"
    answer = ApiError(error.status_code, f"{request.method} {path}: {reason}").response()
    answer.headers.update(error.headers or {})  # such as Allow
    return answer


async def _answer_fault(request: Request, error: Exception) -> Response:
    """A fault of ours; the log has the traceback, the client has not."""
    return ApiError(500, "the server has a fault; its log says which", code="internal_error").response()
