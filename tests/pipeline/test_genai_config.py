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


def test_a_misspelt_option_is_refused() -> None:
    config = ovspec.GenerationConfig()
    for call in (
        lambda: setattr(config, "max_new_token", 3),
        lambda: ovspec.GenerationConfig(max_new_token=3),
        lambda: config.update_generation_config(max_new_token=3),
    ):
        with pytest.raises((AttributeError, ValueError), match=r"^max_new_token=3: .*no such option"):
            call()


def test_fields_are_set_by_name_as_by_a_call() -> None:
    fields = {"max_new_tokens": 3, "stop_strings": ["a"], "eos_token_id": 5, "acceptance_threshold": 0.5}
    made, changed = ovspec.GenerationConfig(**fields), ovspec.GenerationConfig()
    changed.update_generation_config(**fields)
    for config in (made, changed):
        assert (config.max_new_tokens, config.stop_strings) == (3, {"a"})
        assert (config.stop_token_ids, config.acceptance_threshold) == ({5}, 0.5)
    with pytest.raises(ValueError, match=r"^top_p=None: expected a number$"):
        ovspec.GenerationConfig(top_p=None)


@pytest.mark.parametrize("content", [None, "{", '{"max_new_tokens": "a"}'])
def test_a_file_that_is_no_configuration(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "generation_config.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    said = f"^{path} is no generation_config.json that can be read: ."
    with pytest.raises(ValueError, match=said) as caught:
        ovspec.GenerationConfig(path)
    assert "\n" not in str(caught.value)


def test_parsers_that_are_none(make_pipeline: Make) -> None:
    with pytest.raises(ValueError, match=r"^parsers: expected objects of openvino_genai.Parser, got int$"):
        make_pipeline().generate(OPEN, max_new_tokens=2, parsers=5)


def test_the_table_of_the_page() -> None:
    assert genai_surface.table() in (ROOT / "docs" / "genai-compatibility.md").read_text(encoding="utf-8")
