"""Every field of `openvino_genai.GenerationConfig` is served as there, or raises and names itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import openvino_genai
import pytest
from openvino_genai import GenerationConfig
from pipeline import genai_surface
from pipeline.genai_surface import (
    ADAPTERS,
    BEAMS,
    DRAFTING,
    PARSERS,
    REFUSED,
    SAMPLING,
    SCORES,
    SERVED,
    TEMPLATE,
)
from prompts import PROMPTS

import ovspec
from ovspec.generation.generation_config import UNSUPPORTED

Make = Callable[..., ovspec.LLMPipeline]
ROOT = Path(__file__).parents[2]
OPEN, ENDING = PROMPTS[0], PROMPTS[32]


def test_every_field_is_accounted_for() -> None:
    config = GenerationConfig()
    fields = {
        name for name in dir(config) if not name.startswith("_") and not callable(getattr(config, name))
    }
    assert fields == {
        *SERVED,
        *SAMPLING,
        *DRAFTING,
        *TEMPLATE,
        *SCORES,
        *ADAPTERS,
        *BEAMS,
        *PARSERS,
        *REFUSED,
    }
    assert set(REFUSED) == set(UNSUPPORTED)


@pytest.mark.parametrize("name", SERVED)
def test_served_as_there(make_pipeline: Make, genai: openvino_genai.LLMPipeline, name: str) -> None:
    options = SERVED[name]
    ours = [str(make_pipeline(draft=True).generate(prompt, **options)) for prompt in (OPEN, ENDING)]
    assert ours == [str(genai.generate(prompt, **options)) for prompt in (OPEN, ENDING)]
    without = {key: value for key, value in options.items() if key != name} or {"max_new_tokens": 60}
    assert ours != [
        str(make_pipeline().generate(prompt, **{"max_new_tokens": 60, **without}))
        for prompt in (OPEN, ENDING)
    ]


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("draft", [False, True])
def test_refused_by_name(make_pipeline: Make, draft: bool, name: str) -> None:
    pipeline = make_pipeline(draft=draft)
    config = GenerationConfig()
    setattr(config, name, REFUSED[name])
    for call in (
        lambda: pipeline.generate(OPEN, **{name: REFUSED[name]}),
        lambda: pipeline.generate(OPEN, config),
        lambda: pipeline.set_generation_config(config),
    ):
        with pytest.raises(RuntimeError, match=f"^{name}=.* is not supported") as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", SAMPLING)
def test_sampling_fields_have_an_effect(make_pipeline: Make, name: str) -> None:
    """Their distributions are compared in test_sampling; the random numbers are not openvino_genai's."""
    pipeline = make_pipeline()
    base = {"do_sample": True, "temperature": 3.0, "max_new_tokens": 20}
    changed = {**base, name: SAMPLING[name]}
    if name == "do_sample":
        base = {"max_new_tokens": 20}
    assert str(pipeline.generate([OPEN], **changed)) != str(pipeline.generate([OPEN], **base))


def test_the_table_of_the_page() -> None:
    assert genai_surface.table() in (ROOT / "docs" / "genai-compatibility.md").read_text(encoding="utf-8")
