"""Sampling with a head follows the target's exact distribution, and with a wrong rule it does not."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from drafters.eagle3_models import pair
from drafters.test_eagle3 import MODES, TREE, settings_of
from drafters.test_heads import KINDS, models_of
from numpy.typing import NDArray
from scipy.stats import chisquare

from ovspec.drafters.drafter import Proposal
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.requests.request import Request
from ovspec.engine.verify import speculation
from ovspec.generation.generation_config import GenerationSettings
from ovspec.generation.raw_metrics import RawPerfMetrics
from ovspec.generation.sequence import Sequence
from ovspec.sampling.acceptance import Accepted

POSITIONS, LIMIT, RUNS, BATCH = 3, 6, 1000, 100
#: Continuations of one token whose probability is asked for; with `top_k` there are no others.
BRANCHES = 3
SAMPLING: dict[str, Any] = {"do_sample": True, "temperature": 2.0, "top_k": BRANCHES, "rng_seed": 5}


def exact(prompt: list[int], settings: GenerationSettings) -> dict[tuple[int, ...], float]:
    """The joint law of the likeliest first tokens, from the target in transformers."""
    found = {(): 1.0}
    for _ in range(POSITIONS):
        longer = {}
        for context, probability in found.items():
            with torch.no_grad():
                logits = pair().model(torch.tensor([[*prompt, *context]])).logits[0, -1]
            drawn = logits.topk(settings.sampling.top_k or len(logits))
            law = (drawn.values / settings.sampling.temperature).softmax(0)
            for token, p in zip(drawn.indices[:BRANCHES].tolist(), law[:BRANCHES].tolist(), strict=True):
                longer[(*context, token)] = probability * p
        found = longer
    return found


def p_value(kind: str, mode: str, together: int = BATCH, **options: Any) -> tuple[float, RawPerfMetrics]:
    """P-value of the first tokens of many runs, several sequences at once."""
    return p_value_of(LLMEngine(*models_of(kind), MODES[mode], 64, max_num_seqs=together), **options)


def p_value_of(engine: LLMEngine, **options: Any) -> tuple[float, RawPerfMetrics]:
    prompt, metrics = pair().prompts[1], RawPerfMetrics()
    settings = settings_of(**{**SAMPLING, "max_new_tokens": LIMIT, "num_assistant_tokens": 3, **options})
    seen: Counter[tuple[int, ...]] = Counter()
    for start in range(0, RUNS, BATCH):
        numbers = range(start, start + BATCH)
        requests = [Request(str(n), prompt, settings, index=n, metrics=metrics) for n in numbers]
        seen.update(tuple(tokens[:POSITIONS]) for tokens in engine.generate(requests).values())
    law = exact(prompt, settings)
    if settings.sampling.top_k and not set(seen) <= set(law):
        return 0.0, metrics  # an impossible continuation was drawn
    outcomes = [outcome for outcome in law if law[outcome] * RUNS >= 5]
    expected = np.array([law[outcome] * RUNS for outcome in outcomes])
    observed = np.array([seen[outcome] for outcome in outcomes], float)
    if (rest := RUNS - expected.sum()) >= 5:
        expected, observed = np.append(expected, rest), np.append(observed, RUNS - observed.sum())
    assert len(expected) > 8
    return float(chisquare(observed, expected * observed.sum() / expected.sum()).pvalue), metrics


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_first_tokens_follow_the_exact_law(kind: str, mode: str) -> None:
    found, metrics = p_value(kind, mode)
    assert found > 1e-3
    assert {0, 1} <= set(metrics.accepted_lengths)


@pytest.mark.slow
@pytest.mark.parametrize("together", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_first_tokens_follow_the_exact_law_with_block_verification(kind: str, together: int) -> None:
    found, metrics = p_value(kind, "dense", together, acceptance_rule="block")
    assert found > 1e-3
    assert {0, 1} <= set(metrics.accepted_lengths)


def accept_everything(sequence: Sequence, proposal: Proposal, logits: NDArray[np.float32]) -> Accepted:
    count = len(proposal.tokens)
    p = sequence.processor.distribution(logits[count], proposal.tokens)
    return Accepted(count, sequence.coupling.draw(p, len(sequence.tokens) + count))


@pytest.mark.slow
@pytest.mark.parametrize("together", [1, 4])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_first_tokens_follow_the_exact_law_with_trees(kind: str, mode: str, together: int) -> None:
    found, metrics = p_value(kind, mode, together, **TREE)
    assert found > 1e-3
    assert {0, 1, 2} <= set(metrics.accepted_lengths)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_rule_fails_the_same_test(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculation, "accept", accept_everything)
    assert p_value(kind, "dense")[0] < 1e-6
