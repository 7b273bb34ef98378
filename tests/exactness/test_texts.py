"""Greedy texts at default precision are plain decoding's, whatever drafts, and beside other sequences."""

from __future__ import annotations

from typing import Any

import pytest
from prompts import PROMPTS

import ovspec
from ovspec_models import demo_pair_path

TOKENS = 48
MODES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "assistant": ({"draft": True}, {"num_assistant_tokens": 5}),
    "prompt_lookup": ({"prompt_lookup": True}, {"num_assistant_tokens": 5, "max_ngram_size": 3}),
    "commit": ({"draft": True, "verify": "commit"}, {"num_assistant_tokens": 4}),
}
COUNTS = [8, pytest.param(50, marks=pytest.mark.sweep)]


def pipeline(draft: bool = False, **options: Any) -> ovspec.LLMPipeline:
    folder = demo_pair_path()
    if draft:
        options["draft_model"] = ovspec.draft_model(folder / "draft")
    return ovspec.LLMPipeline(folder, "CPU", **options)


@pytest.fixture(scope="module")
def plain() -> ovspec.LLMPipeline:
    return pipeline()


def differing(plain: ovspec.LLMPipeline, texts: list[str], prompts: list[str]) -> list[str]:
    expected = [plain.generate(prompt, max_new_tokens=TOKENS) for prompt in prompts]
    return [prompt for prompt, a, b in zip(prompts, expected, texts, strict=True) if a != b]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("mode", MODES)
def test_drafts_change_no_text(plain: ovspec.LLMPipeline, mode: str, count: int) -> None:
    made, asked = MODES[mode]
    drafting, prompts = pipeline(**made), PROMPTS[:count]
    texts = [drafting.generate(prompt, max_new_tokens=TOKENS, **asked) for prompt in prompts]
    assert differing(plain, texts, prompts) == []


@pytest.mark.parametrize("count", COUNTS)
def test_other_sequences_change_no_text(plain: ovspec.LLMPipeline, count: int) -> None:
    for first in range(0, count, 4):
        prompts = PROMPTS[first : min(first + 4, count)]
        texts = plain.generate(prompts, max_new_tokens=TOKENS).texts
        assert differing(plain, texts, prompts) == []
