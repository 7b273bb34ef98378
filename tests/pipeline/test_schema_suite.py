"""Schemas of the JSON-Schema-Test-Suite, draft 2020-12: whole answers are what each says, or it is refused.

`make test-slow` fetches them, in the sources of the package jsonschema.
"""

from __future__ import annotations

import functools
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from openvino_genai import GenerationFinishReason, StructuredOutputConfig
from pipeline.test_structured_output import SAMPLED, WAYS, pipeline_of
from prompts import PROMPTS

from ovspec.errors import InvalidValueError

jsonschema = pytest.importorskip("jsonschema")
SOURCES = Path(__file__).parents[2] / "build" / "jsonschema-4.26.0.tar.gz"
COUNT = 100
# Their patterns have classes that Python does not know, so that jsonschema can't check them.
_UNCHECKED = "\\p{"


@functools.cache
def suite() -> list[dict[str, Any]]:
    """Its schemas, each once, without those of other files."""
    found: dict[str, Any] = {}
    with tarfile.open(SOURCES) as archive:
        for name in sorted(archive.getnames()):
            if "/json/tests/draft2020-12/" not in name or name.count("/") != 4 or not name.endswith(".json"):
                continue
            file = archive.extractfile(name)
            assert file is not None
            for case in json.load(file):
                text = json.dumps(case["schema"])
                if isinstance(case["schema"], dict) and "localhost" not in text and _UNCHECKED not in text:
                    found.setdefault(text, case["schema"])
    return list(found.values())


@functools.cache
def followed() -> list[dict[str, Any]]:
    """Those that are followed, from all parts of the suite; the others are refused in a line."""
    pipeline, good = pipeline_of("plain"), []
    refused: list[str] = []
    for schema in suite():
        try:
            pipeline.settings(structured_output_config=form(schema), max_new_tokens=4)
        except InvalidValueError as error:
            refused.append(str(error))
        else:
            good.append(schema)
    assert all(text.startswith("structured_output_config.json_schema: ") for text in refused)
    assert not any("\n" in text for text in refused)
    assert len(good) >= 150, refused
    return [good[place * len(good) // COUNT] for place in range(COUNT)]


def form(schema: dict[str, Any]) -> StructuredOutputConfig:
    return StructuredOutputConfig(json_schema=json.dumps(schema))


def swept(ways: list[str]) -> list[Any]:
    return [pytest.param(way, marks=pytest.mark.sweep) for way in ways]


@pytest.mark.slow
@pytest.mark.skipif(not SOURCES.exists(), reason="`make test-slow` and `make sweep` fetch the suite")
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("way", [*WAYS][:2] + swept([*WAYS][2:]))
def test_answers_are_what_the_schema_says(way: str, sampled: bool) -> None:
    assert len(suite()) > 300
    pipeline, num_whole = pipeline_of(way), 0
    options = {**WAYS[way][1], **(SAMPLED if sampled else {}), "max_new_tokens": 24}
    for place, schema in enumerate(followed()):
        prompt = PROMPTS[place % 8]
        results = pipeline.generate([prompt], structured_output_config=form(schema), **options)
        if results.finish_reasons[0] != GenerationFinishReason.LENGTH:
            jsonschema.Draft202012Validator(schema).validate(json.loads(results.texts[0]))
            num_whole += 1
    assert num_whole >= 20
