"""Greedy text with an assistant is, token for token, the text of plain decoding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import openvino as ov
import pytest
from openvino_genai import TokenizedInputs
from prompts import PROMPTS, STORY
from tiers import by_tier

import ovspec

NEW_TOKENS = 40


def generate(pipeline: ovspec.LLMPipeline, prompt: str, **options: object) -> ovspec.EncodedResults:
    ids = np.array(pipeline.get_tokenizer().encode(prompt).input_ids.data, np.int64)
    inputs = TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids)))
    return pipeline.generate(inputs, max_new_tokens=NEW_TOKENS, **options)


def tokens_of(pipeline: ovspec.LLMPipeline, prompt: str, **options: object) -> list[int]:
    return generate(pipeline, prompt, **options).tokens[0]


@pytest.fixture(scope="module")
def plain(make_pipeline: Callable[..., ovspec.LLMPipeline]) -> dict[str, list[int]]:
    pipeline = make_pipeline(attention="stock")
    return {prompt: tokens_of(pipeline, prompt) for prompt in PROMPTS[:20]}


@pytest.mark.parametrize("attention", by_tier(["native", "stock"], ["native"]))
def test_20_prompts_are_token_identical(
    make_pipeline: Callable[..., ovspec.LLMPipeline], plain: dict[str, list[int]], attention: str
) -> None:
    """And the demo pair keeps its promise: more than two tokens a pass at four assistant tokens."""
    assert len(plain) == 20
    pipeline = make_pipeline(draft=True, attention=attention)
    proposed = accepted = 0
    for prompt in plain:
        result = generate(pipeline, prompt, num_assistant_tokens=4)
        assert result.tokens[0] == plain[prompt], prompt
        proposed += result.perf_metrics.raw_metrics.num_drafts
        accepted += sum(result.perf_metrics.raw_metrics.accepted)
    assert 1 + accepted / proposed > 2.0


@pytest.mark.parametrize("count", by_tier([1, 2, 7, 16, 63], [1, 7, 63]))
def test_any_number_of_assistant_tokens(
    make_pipeline: Callable[..., ovspec.LLMPipeline], plain: dict[str, list[int]], count: int
) -> None:
    pipeline = make_pipeline(draft=True)
    for prompt in PROMPTS[:5]:
        assert tokens_of(pipeline, prompt, num_assistant_tokens=count) == plain[prompt], prompt


def test_confidence_threshold(
    make_pipeline: Callable[..., ovspec.LLMPipeline], plain: dict[str, list[int]]
) -> None:
    pipeline = make_pipeline(draft=True)
    for prompt in PROMPTS[:5]:
        got = tokens_of(pipeline, prompt, assistant_confidence_threshold=0.4)
        assert got == plain[prompt], prompt


def test_interleaved_prompts(
    make_pipeline: Callable[..., ovspec.LLMPipeline], plain: dict[str, list[int]]
) -> None:
    pipeline = make_pipeline(draft=True)
    prompts = [PROMPTS[3], STORY, PROMPTS[7]]
    together = pipeline.generate(prompts, max_new_tokens=NEW_TOKENS)
    alone = [
        make_pipeline(attention="stock").generate(prompt, max_new_tokens=NEW_TOKENS) for prompt in prompts
    ]
    assert together.texts == alone


@pytest.mark.slow
def test_penalties_with_drafts(make_pipeline: Callable[..., ovspec.LLMPipeline]) -> None:
    """A penalty depends on the tokens before a row, drafted ones included."""
    options = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2}
    for prompt in PROMPTS[:5]:
        want = tokens_of(make_pipeline(attention="stock"), prompt, **options)
        assert tokens_of(make_pipeline(draft=True), prompt, **options) == want
        assert tokens_of(make_pipeline(attention="stock"), prompt) != want


def test_sparse_with_a_budget_that_covers_the_context_is_dense(
    make_pipeline: Callable[..., ovspec.LLMPipeline], plain: dict[str, list[int]]
) -> None:
    pipeline = make_pipeline(draft=True, verify=ovspec.SparseVerify(L0=4096, rho=0.0))
    for prompt in PROMPTS[:10]:
        assert tokens_of(pipeline, prompt) == plain[prompt], prompt


def test_sparse_reads_its_budget(make_pipeline: Callable[..., ovspec.LLMPipeline]) -> None:
    pipeline = make_pipeline(draft=True, verify=ovspec.SparseVerify(budget=160))
    metrics = pipeline.generate([STORY], max_new_tokens=NEW_TOKENS).perf_metrics
    context = metrics.get_num_input_tokens()
    # Five blocks, the last of which is partial, of the context as it grows.
    low, high = 4 * 32 / (context + NEW_TOKENS + 5), 5 * 32 / context
    assert low <= metrics.get_attention_density() <= high < 0.5
