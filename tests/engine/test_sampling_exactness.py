"""Speculative sampling through real models follows the target's exact distribution."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray
from openvino_genai import GenerationConfig
from scipy.stats import chisquare
from settings import F32

from ovspec.cache import CachedSequence
from ovspec.drafters import AssistantDrafter
from ovspec.engine import Engine
from ovspec.generation_config import resolve
from ovspec.metrics import RawPerfMetrics
from ovspec.model_runner import AttentionConfig, ModelRunner
from ovspec.sampling import SamplingParams, sampling_distribution
from ovspec.sequence import Sequence
from ovspec.tables import Rows
from ovspec_models.shapes import ModelShape
from ovspec_models.synthetic import build_model

VOCAB = 5
PROMPT = [3, 1, 4, 1, 2, 0, 2]
RUNS, BATCH, POSITIONS = 5000, 500, 3

SHAPE = ModelShape(
    name="enumerable",
    model_type="qwen3",
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=32,
    max_position_embeddings=256,
    rope_theta=10000.0,
    qk_norm=True,
    tie_word_embeddings=False,
    vocab_size=VOCAB,
)
SETTINGS = {
    "plain sampling": {},
    "temperature": {"temperature": 2.0},
    "top-k and top-p": {"temperature": 1.5, "top_k": 4, "top_p": 0.9},
    "repetition penalty": {"temperature": 1.5, "repetition_penalty": 1.4},
}


@pytest.fixture(scope="module")
def models() -> tuple[ModelRunner, ModelRunner]:
    """A target and a draft that knows nothing of it: they disagree strongly."""
    return (
        ModelRunner(build_model(SHAPE, "fp32", seed=1), "CPU", AttentionConfig(), F32),
        ModelRunner(build_model(SHAPE, "fp32", seed=2), "CPU", AttentionConfig(), F32),
    )


def exact_distribution(target: ModelRunner, config: GenerationConfig) -> dict[tuple[int, ...], float]:
    """Probability of every continuation of three tokens, one prefill per context, no drafts."""
    params = resolve(config, (), has_draft=True).sampling

    def next_token(context: tuple[int, ...]) -> NDArray[np.float64]:
        cached = CachedSequence()
        tokens = np.array([*PROMPT, *context], np.int64)
        row = np.array(target.forward([Rows(cached, tokens, sampled=1)]))[0]
        target.release(cached)
        return sampling_distribution(penalised(row, tokens, params), params).dense(VOCAB)

    exact = {(): 1.0}
    for _ in range(POSITIONS):
        exact = {
            (*context, token): probability * p
            for context, probability in exact.items()
            for token, p in enumerate(next_token(context))
            if probability > 0
        }
    return exact


def penalised(
    row: NDArray[np.float32], tokens: NDArray[np.int64], params: SamplingParams
) -> NDArray[np.float32]:
    out = row.copy()
    for token in set(tokens.tolist()):
        out[token] = (
            row[token] / params.repetition_penalty
            if row[token] >= 0
            else row[token] * params.repetition_penalty
        )
    return out


def draw(target: ModelRunner, draft: ModelRunner, config: GenerationConfig) -> Counter[tuple[int, ...]]:
    """First three tokens of many runs through the engine, in batches of interleaved sequences."""
    engine = Engine(target, AssistantDrafter(draft, VOCAB, 64), "dense", 64)
    settings = resolve(config, (), has_draft=True)
    seen: Counter[tuple[int, ...]] = Counter()
    metrics = RawPerfMetrics()
    for start in range(0, RUNS, BATCH):
        batch = [Sequence.start(PROMPT, POSITIONS + 1, settings, start + index) for index in range(BATCH)]
        engine.run(batch, lambda sequence, tokens: True, metrics)
        for sequence in batch:
            seen[tuple(sequence.generated[:POSITIONS])] += 1
            engine.release(sequence)
    assert 0 < sum(metrics.accepted) < sum(metrics.proposed), "the test needs acceptance and rejection"
    return seen


@pytest.mark.parametrize("name", SETTINGS)
def test_three_positions_follow_the_exact_distribution(
    models: tuple[ModelRunner, ModelRunner], name: str
) -> None:
    config = GenerationConfig()
    config.max_new_tokens, config.do_sample, config.num_assistant_tokens = POSITIONS + 1, True, 3
    config.rng_seed = 20
    for field, value in SETTINGS[name].items():
        setattr(config, field, value)
    target, draft = models
    exact = exact_distribution(target, config)
    seen = draw(target, draft, config)
    assert all(exact.get(outcome, 0) > 0 for outcome in seen), "an impossible continuation was drawn"
    # Rare outcomes are pooled, as the chi-square test asks for at least five expected of each.
    common = [
        outcome
        for outcome in itertools.product(range(VOCAB), repeat=POSITIONS)
        if exact.get(outcome, 0) * RUNS >= 5
    ]
    expected = np.array([exact[outcome] * RUNS for outcome in common])
    observed = np.array([seen[outcome] for outcome in common], float)
    rest = RUNS - expected.sum()
    if rest > 1e-6:
        expected, observed = np.append(expected, rest), np.append(observed, RUNS - observed.sum())
    assert len(expected) > 10
    assert chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-3


def test_the_draft_differs_from_the_target(models: tuple[ModelRunner, ModelRunner]) -> None:
    """Otherwise the test above would pass with any acceptance rule."""
    config = GenerationConfig()
    config.max_new_tokens, config.do_sample = POSITIONS, True
    p, q = (exact_distribution(model, config) for model in models)
    assert sum(abs(p[outcome] - q[outcome]) for outcome in p) / 2 > 0.2
