"""The routes of the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from typing import TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ovspec.serve.answers import Answerer
from ovspec.serve.api_error import ApiError, answer_with_error
from ovspec.serve.backend import Backend
from ovspec.serve.bodies import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    GenerationBody,
    StrictBody,
    TokenizeBody,
)
from ovspec.serve.calls import Call
from ovspec.serve.counts import Counts
from ovspec.serve.limits import Limits
from ovspec.serve.protection import HostCheck, KeyCheck, WriteTimeout, read_body
from ovspec.serve.served_model import ServedModel, mode_name

Handler = Callable[[Request], Awaitable[Response]]
Kind = TypeVar("Kind", bound=StrictBody)


class Server:
    """The handlers of the routes."""

    def __init__(self, model: ServedModel, backend: Backend, limits: Limits) -> None:
        self._model, self._engine, self._limits = model, backend.answers, limits
        self._counts = Counts(model.name, backend.gauges)
        self._answerer = Answerer(backend.answers, limits, self._counts)

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
            Route("/metrics", self.metrics, methods=["GET"]),
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.complete, methods=["POST"]),
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
                    allow_headers=["Authorization", "Content-Type"],
                )
            )
        if keys:
            middleware.append(Middleware(KeyCheck, keys=list(keys)))
        elif hosts:
            middleware.append(Middleware(HostCheck, hosts=list(hosts)))
        handlers = {ApiError: answer_with_error, HTTPException: _answer_http_error, Exception: _answer_fault}
        return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)  # type: ignore[arg-type]

    async def page(self, request: Request) -> Response:
        """The page for people."""
        return HTMLResponse(files("ovspec.serve").joinpath("page.html").read_text(encoding="utf-8"))

    async def health(self, request: Request) -> Response:
        """Whether requests are taken."""
        if not self._engine.lives:
            raise ApiError(503, "the engine has ended; restart the server", code="engine_error")
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """Metrics for Prometheus."""
        return Response(self._counts.text(), media_type="text/plain; version=0.0.4")

    async def models(self, request: Request) -> Response:
        """The served model."""
        model = self._model
        entry = {
            "id": model.name,
            "object": "model",
            "created": model.created,
            "owned_by": "ovspec",
            "root": model.root,
            "parent": None,
            "max_model_len": model.max_model_len,
            "verify": mode_name(model.requests.verify),
            "drafts": model.requests.drafts,
            "has_chat_template": bool(model.tokenizer.chat_template),
        }
        return JSONResponse({"object": "list", "data": [entry]})

    async def chat(self, request: Request) -> Response:
        """Answer a chat."""
        return await self._answer(request, ChatBody)

    async def complete(self, request: Request) -> Response:
        """Continue a text."""
        return await self._answer(request, CompletionBody)

    async def _answer(self, request: Request, kind: type[GenerationBody]) -> Response:
        arrived = time.perf_counter()
        body = await self._body(request, kind)
        # Reading a long prompt takes the tokenizer a while, in which others are to be answered.
        call = await asyncio.to_thread(Call.of, body, self._model, arrived)
        return await self._answerer.answer(call, request)

    async def tokenize(self, request: Request) -> Response:
        """Token ids of a text or a chat."""
        body = await self._body(request, TokenizeBody)
        self._model.check_name(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise ApiError(400, "prompt: give either prompt or messages", "prompt")
        if body.special_tokens_in_content and body.messages is None:
            field = "special_tokens_in_content"
            raise ApiError(400, f"{field}: is for messages; leave it out", field)
        if body.messages is not None:
            content = body.special_tokens_in_content
            tokens = await asyncio.to_thread(self._model.tokens_of_chat, body.messages, content)
        else:
            assert body.prompt is not None
            tokens = await asyncio.to_thread(self._model.tokens_of, body.prompt, body.add_special_tokens)
        return JSONResponse(
            {"count": len(tokens), "max_model_len": self._model.max_model_len, "tokens": tokens}
        )

    async def detokenize(self, request: Request) -> Response:
        """The text of token ids."""
        body = await self._body(request, DetokenizeBody)
        self._model.check_name(body.model)
        self._model.check_tokens(body.tokens, "tokens")
        return JSONResponse({"prompt": self._model.token_text.decode(body.tokens)})

    async def _body(self, request: Request, kind: type[Kind]) -> Kind:
        return kind.parse(await read_body(request, self._limits))


async def _answer_http_error(request: Request, error: HTTPException) -> Response:
    """What Starlette refuses, such as an unknown path, in OpenAI's form."""
    answer = ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail}").response()
    answer.headers.update(error.headers or {})  # such as Allow
    return answer


async def _answer_fault(request: Request, error: Exception) -> Response:
    """A fault of ours; the log has the traceback, the client has not."""
    return ApiError(500, "the server has a fault; its log says which", code="internal_error").response()
