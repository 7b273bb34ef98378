"""The server's own description: every route, and answers as they really are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from serve.conftest import Served

from ovspec.serve.openapi import openapi_document
from ovspec.serve.output import answer_schemas as schemas
from ovspec.serve.output.response_schemas import ResponseAnswer

PROMPT = {"prompt": ["Once", "Tom"], "max_tokens": 4, "logprobs": 2, "return_token_origins": True}
CHAT = {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 4}
ANSWERS = {
    "/v1/completions": (PROMPT, schemas.Completion),
    "/v1/chat/completions": (
        {**CHAT, "logprobs": True, "top_logprobs": 2, "n": 2, "temperature": 1},
        schemas.ChatCompletion,
    ),
    "/v1/responses": (
        {
            "input": "Once",
            "max_output_tokens": 4,
            "top_logprobs": 1,
            "tools": [{"type": "function", "name": "f"}],
        },
        ResponseAnswer,
    ),
    "/tokenize": ({"prompt": "Once"}, schemas.Tokens),
    "/detokenize": ({"tokens": [5, 6]}, schemas.DecodedText),
    "/v1/models": (None, schemas.ModelList),
    "/v1/models/{model}": (None, schemas.ServedModelEntry),
    "/health": (None, schemas.Health),
    "/ping": (None, schemas.Health),
    "/version": (None, schemas.Version),
}


@pytest.fixture(scope="module")
def document(served: Served) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(served.get("/openapi.json"))
    return found


@pytest.mark.parametrize("path", ANSWERS)
def test_answers_have_the_fields_of_their_schema_and_no_others(
    served: Served, document: dict[str, Any], path: str
) -> None:
    body, shape = ANSWERS[path]
    answer = json.loads(served.get(path.format(model="demo"))) if body is None else served.post(path, body)[1]
    shape.model_validate(answer)
    entry = document["paths"][path]["get" if body is None else "post"]
    shown = entry["responses"]["200"]["content"]["application/json"]["schema"]
    assert shown == {"$ref": f"#/components/schemas/{shape.__name__}"}
    assert set(document["components"]["schemas"][shape.__name__]["required"]) == set(answer)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Once", "temperature": 9}),
        ("/v1/completions", {"prompt": "Once", "model": "gpt-9"}),
        ("/tokenize", b"{"),
    ],
)
def test_refusals_have_a_status_and_a_form_of_the_document(
    served: Served, document: dict[str, Any], path: str, body: object
) -> None:
    status, answer = served.post(path, body)
    schemas.Error.model_validate(answer)
    assert str(status) in document["paths"][path]["post"]["responses"]


def test_every_route_is_described(served: Served, document: dict[str, Any]) -> None:
    """A path answers the methods of the document, and says so to others."""
    assert document["openapi"] == "3.1.0" and "securitySchemes" not in document["components"]
    paths = {"/", "/metrics", "/openapi.json", *ANSWERS}
    assert set(document["paths"]) == paths
    for path, entry in document["paths"].items():
        status, _ = served.post(path, {})
        assert (status == 405) == ("post" not in entry), path


def test_fields_say_what_they_take(document: dict[str, Any]) -> None:
    fields = document["components"]["schemas"]["CompletionBody"]["properties"]
    form = document["components"]["schemas"]["ResponseFormat"]["properties"]["type"]
    assert form["enum"] == ["text", "json_object", "json_schema", "structural_tag"]
    assert {"type": "string"} in fields["stop"]["anyOf"]
    assert fields["service_tier"]["enum"] == [None, "auto", "default"]
    assert fields["logit_bias"]["anyOf"][0]["maxProperties"] == 1024
    assert fields["n"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 16}
    assert fields["logprobs"]["anyOf"][0] == {"type": "integer", "minimum": 0, "maximum": 20}
    assert fields["top_k"]["anyOf"][0] == {"type": "integer", "minimum": -1}


def test_bodies_take_other_fields_unless_they_are_refused(document: dict[str, Any]) -> None:
    for found, is_strict in ((document, False), (openapi_document(False, True), True)):
        for name in ("CompletionBody", "Message", "ResponseFormat"):
            shown = found["components"]["schemas"][name]
            assert shown.get("additionalProperties", True) is not is_strict, name
