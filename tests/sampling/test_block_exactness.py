"""Block verification through real models: the exact distribution, tokens per pass, and what is said of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import one_line, ovspec
from prompts import STORY
from sampling.test_block_verification import block_without_residual
from sampling.test_sampling_exactness import MANY_RUNS, RUNS, SETTINGS, Case
from settings import F32
from tiers import by_tier

import ovspec as package
from ovspec.drafters.drafter import Proposal
from ovspec.drafters.drawing import draw
from ovspec.engine.verify import accept
from ovspec.generation.sequence import Sequence as Text
from ovspec.sampling.acceptance import Accepted
from ovspec.sampling.block_verification import block_accept

FIRST = [Case("assistant", rule="block")]
CASES = [
    *(Case(drafter, rule="block", together=4) for drafter in ("assistant", "prompt_lookup")),
    *(Case("assistant", setting=setting, rule="block") for setting in SETTINGS),
    Case("assistant", rule="block", together=1),
    Case("prompt_lookup", rule="block", together=1),
    *(Case(drafter, rule="block") for drafter in ("suffix", "sparse_self", "layer_skip", "auto", "own")),
]


@pytest.mark.parametrize("case", by_tier(CASES, FIRST), ids=str)
def test_positions_follow_the_exact_distribution(case: Case) -> None:
    p_value, metrics = case.p_value(RUNS)
    assert p_value > 1e-3
    assert set(metrics.accepted_lengths) == {0, 1, 2, 3}


@pytest.mark.sweep
@pytest.mark.parametrize("case", CASES, ids=str)
def test_positions_follow_the_exact_distribution_in_many_runs(case: Case) -> None:
    assert case.p_value(MANY_RUNS)[0] > 1e-4


def used_again(*given: Any) -> Accepted:
    """Judges every draft by the same numbers."""
    tokens, p, q, _, draw = given
    return block_accept(tokens, p, q, np.random.default_rng(1).random(len(tokens)), draw)


@pytest.mark.parametrize("wrong", by_tier([block_without_residual, used_again], [used_again]))
def test_wrong_rules_fail_the_same_test(
    wrong: Callable[..., Accepted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accept, "block_accept", wrong)
    assert Case("assistant", rule="block").p_value(RUNS)[0] < 1e-6


@pytest.fixture(scope="module")
def demo(demo_ir: Path) -> package.LLMPipeline:
    draft = package.draft_model(demo_ir / "draft")
    return package.LLMPipeline(demo_ir, "CPU", draft_model=draft, drafter="assistant", **F32)


def answers(demo: package.LLMPipeline, prompts: Sequence[str], **options: Any) -> package.DecodedResults:
    given = {"do_sample": True, "num_assistant_tokens": 4, "max_new_tokens": 64, **options}
    return demo.generate(list(prompts), **given)


@pytest.mark.slow
def test_more_tokens_a_pass_than_with_coupled_draws(demo: package.LLMPipeline) -> None:
    """About 1.15 times as many behind these prompts; 1 is five standard errors below."""
    prompts = [STORY[:length] for length in range(60, 620, 14)]
    coupled, block = (
        answers(demo, prompts, acceptance_rule=rule).perf_metrics for rule in ("coupled", "block")
    )
    assert block.get_mean_acceptance_length() > coupled.get_mean_acceptance_length()
    assert coupled.identity_breakers == () and block.why_lossy == ""
    assert [reason.split("=")[0] for reason in block.identity_breakers] == ["acceptance_rule"]


def test_a_seed_names_a_text_with_its_drafts(demo: package.LLMPipeline) -> None:
    def text(**options: Any) -> str:
        return answers(demo, [STORY[:80]], rng_seed=5, **options).texts[0]

    plain = text(num_assistant_tokens=0)
    assert text(num_assistant_tokens=0, acceptance_rule="block") == plain == text()
    assert text(acceptance_rule="block") == text(acceptance_rule="block") != plain
    assert text(acceptance_rule="block") != text(acceptance_rule="block", num_assistant_tokens=3)


def test_what_was_answered_is_continued_with_other_numbers(demo: package.LLMPipeline) -> None:
    settings = demo.settings(do_sample=True, acceptance_rule="block")
    starts = [((1, 2), 0, ()), ((1, 2), 0, (3,)), ((1, 2), 0, (3, 4)), ((1, 2), 1, ())]
    texts = [Text.start(prompt, 9, settings, i, answered) for prompt, i, answered in (*starts, starts[0])]
    *numbers, again = [text.coupling.uncoupled.random() for text in texts]
    assert len(set(numbers)) == 4
    assert again == numbers[0]


def test_drafts_are_drawn_anew_unless_they_are_coupled(demo: package.LLMPipeline) -> None:
    """Else a place that is drafted again would get the token that was rejected there."""
    logits, drawn = np.zeros(50, np.float32), dict[str, set[int]]()
    for rule in ("coupled", "block"):
        sequence, proposals = (
            Text.start((1, 2), 9, demo.settings(do_sample=True, acceptance_rule=rule), 0),
            [],
        )
        for _ in range(20):
            proposals.append(Proposal())
            draw(sequence, proposals[-1], logits)
        drawn[rule] = {proposal.tokens[0] for proposal in proposals}
        assert all(proposal.q[0].prob(7) == pytest.approx(1 / 50) for proposal in proposals)
    assert len(drawn["coupled"]) == 1 and len(drawn["block"]) > 10


def test_the_command_says_what_is_promised(demo_ir: Path) -> None:
    generate = (
        "generate",
        "-m",
        demo_ir,
        "-p",
        "Once",
        "--max-new-tokens",
        "8",
        "--acceptance-rule",
        "block",
    )
    assert "--acceptance-rule block needs --do-sample" in one_line(ovspec(*generate))
    report = json.loads(ovspec(*generate, "--do-sample", "--json").stdout)
    assert report["identity_promised"] is False and report["metrics"]["why_lossy"] is None
    refused = ovspec(*generate, "--do-sample", "--verify", "commit")
    assert refused.returncode == 2 and "contradicts --verify commit" in one_line(refused)
