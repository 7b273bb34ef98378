"""The server's own description: every route, and answers as they really are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from serve.conftest import Served

from ovspec.serve import answer_schemas as schemas

PROMPT = {"prompt": ["Once", "Tom"], "max_tokens": 4, "logprobs": 2, "return_token_origins": True}
CHAT = {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 4}
ANSWERS = {
    "/v1/completions": (PROMPT, schemas.Completion),
    "/v1/chat/completions": ({**CHAT, "logprobs": True, "top_logprobs": 2, "n": 2}, schemas.ChatCompletion),
    "/tokenize": ({"prompt": "Once"}, schemas.Tokens),
    "/detokenize": ({"tokens": [5, 6]}, schemas.DecodedText),
    "/v1/models": (None, schemas.ModelList),
    "/health": (None, schemas.Health),
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
    answer = json.loads(served.get(path)) if body is None else served.post(path, body)[1]
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
    assert fields["response_format"]["enum"] == [None, {"type": "text"}]
    assert {"type": "string", "minLength": 1} in fields["stop"]["anyOf"]
    assert fields["n"]["maximum"] == 16
