"""`ovspec.VLMPipeline` has the names of `openvino_genai.VLMPipeline`; what is not served is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai
import pytest
from openvino_genai.py_openvino_genai import VLMDecodedResults, VLMPerfMetrics
from pipeline.genai_surface import VLM_ARGUMENTS, VLM_MISSING, vlm_gaps
from settings import F32
from tiny_pictures import PICTURES

import ovspec
from ovspec.generation.metrics import PerfMetrics
from ovspec.generation.results import DecodedResults

ROOT = Path(__file__).parents[2]
TEMPLATE = "{% for message in messages %}[{{ message['content'] }}]{% endfor %}"


@pytest.fixture(scope="module")
def folder(visual_family: Callable[[str], Path]) -> Path:
    return visual_family("Qwen2.5-VL")


@pytest.fixture(scope="module")
def pipeline(folder: Path) -> ovspec.VLMPipeline:
    return ovspec.VLMPipeline(folder, "CPU", drafter="none", **F32)


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_every_public_name_is_served_or_named_as_missing() -> None:
    pairs = (
        (openvino_genai.VLMPipeline, ovspec.VLMPipeline),
        (VLMDecodedResults, DecodedResults),
        (VLMPerfMetrics, PerfMetrics),
    )
    assert set().union(*(public(theirs) - public(ours) for theirs, ours in pairs)) == set(VLM_MISSING)


def test_every_argument_of_generate_is_served_or_refused() -> None:
    said = openvino_genai.VLMPipeline.generate.__doc__ or ""
    named = set(re.findall(r"^ *(\w+): [^\n]*(?: - |,$)", said, re.MULTILINE))
    signatures = re.findall(r"^\d+\. generate\((.*)\) ->", said, re.MULTILINE)
    named |= {name for one in signatures for name in re.findall(r"(\w+): ", one)} - {"self"}
    served = {"prompt", "history", "image", "images", "generation_config", "streamer"}
    assert {"videos", "audio_streamer"} < named
    assert named - served <= set(VLM_ARGUMENTS)


@pytest.mark.parametrize("name", VLM_ARGUMENTS)
def test_what_is_not_served_is_refused_by_name(pipeline: ovspec.VLMPipeline, name: str) -> None:
    with pytest.raises((RuntimeError, TypeError), match=rf"^{name}\b[^\n]+$"):
        pipeline.generate("What?", images=[PICTURES[0]], max_new_tokens=1, **{name: VLM_ARGUMENTS[name][0]})


def test_models_as_text_are_refused(pipeline: ovspec.VLMPipeline, folder: Path) -> None:
    models: Any = {"language": ("<net/>", ov.Tensor(np.zeros(1, np.uint8)))}
    with pytest.raises(TypeError, match=r"^a map of models [^\n]+ save them to a folder, and give that$"):
        ovspec.VLMPipeline(models, pipeline.get_tokenizer(), folder, "CPU")


def test_another_chat_template(pipeline: ovspec.VLMPipeline, folder: Path) -> None:
    # Its paged backend raises that it has no other template.
    other = openvino_genai.VLMPipeline(folder, "CPU", ATTENTION_BACKEND="SDPA", **F32)
    before, counts = pipeline.get_tokenizer().chat_template, []
    try:
        for template in (before, TEMPLATE):
            tokens = []
            for one in (pipeline, other):
                one.set_chat_template(template)
                found = one.generate("What is it?", max_new_tokens=2)
                tokens.append(found.perf_metrics.get_num_input_tokens())
            assert tokens[0] == tokens[1]
            counts.append(tokens[0])
        assert counts[0] != counts[1]
        with pytest.raises(TypeError, match=r"^chat_template: expected text, got int$"):
            pipeline.set_chat_template(3)  # type: ignore[arg-type]
    finally:
        pipeline.set_chat_template(before)


def test_the_page_names_the_gaps() -> None:
    assert vlm_gaps() in (ROOT / "docs" / "pictures.md").read_text(encoding="utf-8")
