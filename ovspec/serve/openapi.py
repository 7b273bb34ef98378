"""The server's own description, as an OpenAPI document."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from ovspec import __version__
from ovspec.serve.output.answer_schemas import (
    ChatCompletion,
    Completion,
    DecodedText,
    Error,
    Health,
    ModelList,
    ServedModelEntry,
    Tokens,
    Version,
)
from ovspec.serve.output.response_schemas import ResponseAnswer
from ovspec.serve.protection import OPEN_PATHS
from ovspec.serve.requests.bodies import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from ovspec.serve.requests.response_bodies import ResponseBody
from ovspec.serve.requests.strict_body import StrictBody

_STREAM = "text/event-stream"
_PARAMETER = re.compile(r"{(\w+)}")
_ERRORS = {
    400: "The request can't be served as it is; `param` names the field.",
    401: "The API key is missing or wrong.",
    404: "The model is not served here.",
    408: "The body did not come in time.",
    413: "The body is too long.",
    415: "The body is no `application/json`.",
    429: "Too much is in work; `Retry-After` says when to try again.",
    500: "The server has a fault.",
    503: "The engine has ended.",
    504: "The answer took too long.",
}
_OF_BODIES = (404, 408, 413, 415, 429, 500)
_OF_ANSWERS = (*_OF_BODIES, 503, 504)


@dataclass(frozen=True, slots=True)
class _Operation:
    """What a path does.

    Attributes:
        answer: its schema, or the type of an answer that is no JSON object.
        errors: statuses that it may have beside those of every path.
    """

    path: str
    method: str
    summary: str
    answer: type[BaseModel] | str
    body: type[StrictBody] | None = None
    errors: tuple[int, ...] = ()
    streams: bool = False


_OPERATIONS = (
    _Operation("/", "get", "A page for people", "text/html"),
    _Operation("/health", "get", "Whether requests are taken", Health, errors=(503,)),
    _Operation("/metrics", "get", "Metrics for Prometheus", "text/plain"),
    _Operation("/openapi.json", "get", "This document", "application/json"),
    _Operation("/ping", "get", "The same as /health", Health, errors=(503,)),
    _Operation("/version", "get", "The version of this server", Version),
    _Operation("/v1/models", "get", "The served model, in a list", ModelList),
    _Operation("/v1/models/{model}", "get", "The served model", ServedModelEntry, errors=(404,)),
    _Operation(
        "/v1/chat/completions", "post", "Answer a chat", ChatCompletion, ChatBody, _OF_ANSWERS, streams=True
    ),
    _Operation(
        "/v1/completions", "post", "Continue a text", Completion, CompletionBody, _OF_ANSWERS, streams=True
    ),
    _Operation(
        "/v1/responses", "post", "Answer items", ResponseAnswer, ResponseBody, _OF_ANSWERS, streams=True
    ),
    _Operation("/tokenize", "post", "Token ids of a text or a chat", Tokens, TokenizeBody, _OF_BODIES),
    _Operation("/detokenize", "post", "The text of token ids", DecodedText, DetokenizeBody, _OF_BODIES),
)


def openapi_document(needs_key: bool, strict_fields: bool = False) -> dict[str, Any]:
    """The document of a server.

    Args:
        needs_key: whether requests must come with a key.
        strict_fields: whether bodies with unknown fields are refused.
    """
    answers = (one.answer for one in _OPERATIONS if isinstance(one.answer, type))
    schemas, definitions = _schemas_of([Error, *answers])
    of_bodies, bodies = _schemas_of([one.body for one in _OPERATIONS if one.body is not None])
    if not strict_fields:
        for body in bodies.values():
            body.pop("additionalProperties", None)
    schemas |= of_bodies
    paths: dict[str, Any] = {}
    for one in _OPERATIONS:
        with_key = needs_key and one.path not in OPEN_PATHS
        paths.setdefault(one.path, {})[one.method] = _described(one, schemas, with_key)
    components: dict[str, Any] = {"schemas": bodies | definitions}
    if needs_key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    info = {"title": "ovspec", "version": __version__, "description": "OpenAI's interface to a served model."}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": components}


def _schemas_of(shapes: Sequence[type[BaseModel]]) -> tuple[dict[type[BaseModel], Any], dict[str, Any]]:
    """A reference to the schema of each, and all schemas by their names."""
    refs, definitions = models_json_schema(
        [(shape, "validation") for shape in shapes], ref_template="#/components/schemas/{model}"
    )
    return {shape: refs[shape, "validation"] for shape in shapes}, definitions["$defs"]


def _described(one: _Operation, schemas: dict[type[BaseModel], Any], with_key: bool) -> dict[str, Any]:
    if isinstance(one.answer, str):
        content = {one.answer: {"schema": {"type": "object" if "json" in one.answer else "string"}}}
    else:
        content = {"application/json": {"schema": schemas[one.answer]}}
    if one.streams:
        content[_STREAM] = {"schema": {"type": "string"}}
    errors = sorted({400, *one.errors, *((401,) if with_key else ())})
    responses: dict[str, Any] = {"200": {"description": one.summary, "content": content}}
    for status in errors:
        content = {"application/json": {"schema": schemas[Error]}}
        responses[str(status)] = {"description": _ERRORS[status], "content": content}
    described: dict[str, Any] = {"summary": one.summary, "responses": responses}
    if one.body is not None:
        content = {"application/json": {"schema": schemas[one.body]}}
        described["requestBody"] = {"required": True, "content": content}
    if names := _PARAMETER.findall(one.path):
        schema = {"type": "string"}
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": schema} for name in names
        ]
    if with_key:
        described["security"] = [{"key": []}]
    return described
