"""Whoever drafts, and however drafts are verified, the text is that of plain decoding."""

from __future__ import annotations

import functools
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from drafters.own_drafters import DRAFTERS, SPARSE
from families import EVERY_NAME, NAMES, family
from openvino_genai import GenerationConfig
from settings import F32
from tiers import by_tier

from ovspec.drafters import AssistantDrafter
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.requests.request import Request
from ovspec.generation.generation_config import GenerationSettings, resolve, updated
from ovspec.generation.raw_metrics import RawPerfMetrics
from ovspec.modes.commit_verify import CommitVerify
from ovspec.operations.attention_config import AttentionConfig
from ovspec.runner.model_runner import ModelRunner
from ovspec.schedule.schedule import Plan, Schedule, StepOutcome, StepState
from ovspec_models import demo_pair_path

NEW_TOKENS = 36
MODES = {
    "dense": "dense",
    "commit": CommitVerify(SPARSE, interval=16),
    "commit 5": CommitVerify(SPARSE, interval=5),
}
SAMPLING: dict[str, Any] = {"do_sample": True, "temperature": 0.9, "top_p": 0.95, "rng_seed": 11}

TREE = {"branching_factor": 3, "tree_depth": 4, "num_assistant_tokens": 12}


class Restless(Schedule):
    """Another plan in every step, as a controller may choose them."""

    def __init__(self) -> None:
        self.outcomes: list[StepOutcome] = []

    def plan(self, state: StepState) -> Plan:
        turn = len(self.outcomes)
        return Plan((5, 0, 1, 12, 3)[turn % 5], (None, 4, 0, 40)[turn % 4])

    def observe(self, outcome: StepOutcome) -> None:
        self.outcomes.append(outcome)


def settings_of(options: dict[str, Any]) -> GenerationSettings:
    config = updated(GenerationConfig(), {"max_new_tokens": NEW_TOKENS, "num_assistant_tokens": 5, **options})
    return resolve(config, (), has_draft=True)


def generate(
    engine: LLMEngine, prompt: list[int], settings: GenerationSettings, schedule: Schedule | None = None
) -> tuple[list[int], RawPerfMetrics]:
    request = Request("alone", prompt, settings, schedule=schedule)
    return engine.generate([request])["alone"], request.metrics


@functools.cache
def plain(name: str, number: int, sampled: bool = False) -> list[int]:
    models = family(name)
    settings = settings_of(SAMPLING if sampled else {})
    return generate(LLMEngine(models.stock, None, "dense", 128), models.prompts[number], settings)[0]


def check(name: str, drafter: str, mode: str, numbers: range) -> None:
    models = family(name)
    engine = LLMEngine(models.target, DRAFTERS[drafter](models), MODES[mode], 128)
    for number in numbers:
        got, metrics = generate(engine, models.prompts[number], settings_of({}))
        assert got == plain(name, number), f"{name}, prompt {number}"
        assert (sum(metrics.provisional_lengths) > 0) == (mode != "dense")
    assert models.target.blocks.usage == 0.0


# Every drafter with one family, every family with one drafter; trees and chains without commits.
FIRST = [
    *(("llama", drafter, "commit") for drafter in DRAFTERS),
    *((name, "sparse_self", "commit") for name in NAMES),
    *(("demo", drafter, "dense") for drafter in ("auto", "own trees")),
]


@pytest.mark.parametrize(
    ("name", "drafter", "mode"), by_tier(product(NAMES, DRAFTERS, ("dense", "commit")), FIRST)
)
def test_greedy_text_is_that_of_plain_decoding(name: str, drafter: str, mode: str) -> None:
    check(name, drafter, mode, range(2))


@pytest.mark.parametrize(
    "drafter", [pytest.param(name, marks=() if name == "suffix" else pytest.mark.slow) for name in DRAFTERS]
)
def test_an_interval_of_the_users_own(drafter: str) -> None:
    check("llama", drafter, "commit 5", range(2))


@pytest.mark.parametrize(
    ("name", "mode", "together", "sampled"),
    by_tier(
        product(("demo", "llama"), ("dense", "commit"), (1, 4), (False, True)),
        [("demo", "commit", 4, True), ("demo", "dense", 1, False)],
    ),
)
def test_trees_of_the_draft_model(name: str, mode: str, together: int, sampled: bool) -> None:
    models = family(name)
    engine = LLMEngine(models.target, DRAFTERS["assistant"](models), MODES[mode], 128)
    settings = settings_of({**TREE, **(SAMPLING if sampled else {})})
    requests = [Request(str(n), prompt, settings) for n, prompt in enumerate(models.prompts[:together])]
    answers = engine.generate(requests)
    assert list(answers.values()) == [plain(name, number, sampled) for number in range(together)]
    assert name != "demo" or all(max(request.metrics.accepted_lengths) > 1 for request in requests)
    assert models.target.blocks.usage == models.draft.blocks.usage == 0.0


@pytest.mark.slow
def test_trees_with_one_list_of_blocks_for_all_their_rows() -> None:
    """The rows of all branches ask for blocks."""
    models = family("demo")
    attention = AttentionConfig(selects=True)
    target = ModelRunner(demo_pair_path(), "CPU", attention, F32)
    engine = LLMEngine(target, DRAFTERS["assistant"](models), CommitVerify(SPARSE, interval=8), 128)
    got, metrics = generate(engine, models.prompts[1], settings_of(TREE))
    assert got == plain("demo", 1) and sum(metrics.confirmed_lengths) > 0


def test_rows_of_an_accepted_path_stay_in_the_drafts_cache() -> None:
    """The next draft begins with them: it reads no token of the path anew."""
    models = family("demo")
    read: list[int] = []

    class Watching(AssistantDrafter):
        def _forward(self, drafts: Any) -> Any:
            read.extend(len(sequence.tokens) - sequence.draft.length for sequence, _ in drafts)
            return super()._forward(drafts)

    drafter = Watching(models.draft, models.vocab_size, 128)
    engine = LLMEngine(models.target, drafter, "dense", 128)
    got, metrics = generate(engine, models.prompts[0], settings_of(TREE))
    assert got == plain("demo", 0)
    # Of a path that went to a leaf, the leaf has not been a row; and never the last token.
    assert sum(metrics.accepted_lengths) > 10 and max(read) <= 2 and sum(read[1:]) < 2 * len(read)


@pytest.mark.sweep
@pytest.mark.parametrize("mode", ["dense", "commit"])
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("name", EVERY_NAME)
def test_greedy_text_over_50_prompts(name: str, drafter: str, mode: str) -> None:
    assert len({tuple(prompt) for prompt in family(name).prompts}) == 50
    check(name, drafter, mode, range(50))


@pytest.mark.parametrize("mode", ["dense", pytest.param("commit", marks=pytest.mark.slow)])
@pytest.mark.parametrize("drafter", [*DRAFTERS, None])
def test_coupled_sampling_gives_the_text_of_plain_decoding(drafter: str | None, mode: str) -> None:
    """A seed repeats whatever is drafted, and however much of it."""
    models = family("llama")
    engine = LLMEngine(models.target, DRAFTERS[drafter](models) if drafter else None, MODES[mode], 128)
    for options in ({"num_assistant_tokens": 2}, {"num_assistant_tokens": 9}):
        settings = settings_of({**SAMPLING, **options})
        assert generate(engine, models.prompts[0], settings)[0] == plain("llama", 0, sampled=True)
    assert plain("llama", 0, sampled=True) != plain("llama", 0)


@pytest.mark.parametrize("mode", ["dense", "commit"])
@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
def test_any_schedule_gives_the_text_of_plain_decoding(mode: str, sampled: bool) -> None:
    models = family("llama")
    engine = LLMEngine(models.target, DRAFTERS["sparse_self"](models), MODES[mode], 128)
    settings = settings_of(SAMPLING if sampled else {})
    schedule = Restless()
    got, metrics = generate(engine, models.prompts[1], settings, schedule)
    assert got == plain("llama", 1, sampled)
    outcomes = schedule.outcomes
    alone = [outcome.sequences[0] for outcome in outcomes]
    commits = [one.commit for one in alone if one.commit]
    assert sum(count for count, _ in commits) == sum(metrics.provisional_lengths)
    assert sum(kept for _, kept in commits) == sum(metrics.confirmed_lengths)
    assert any(one.proposed == 0 for one in alone) and metrics.accepted_lengths
    assert all(outcome.sequences[0].proposed <= outcome.plan.num_assistant_tokens for outcome in outcomes)


@pytest.mark.slow
def test_constant_drafts_repeat_with_their_seed() -> None:
    models = family("llama")
    engine = LLMEngine(models.target, DRAFTERS["assistant"](models), MODES["commit"], 128)
    first, again = (generate(engine, models.prompts[0], settings_of(SAMPLING))[0] for _ in range(2))
    other = generate(engine, models.prompts[0], settings_of({**SAMPLING, "rng_seed": 12}))[0]
    assert first == again != other


def test_commits_correct_the_sparse_verifier() -> None:
    """Without commits the test of identical output above would prove nothing about them."""
    for name in NAMES:
        models = family(name)
        engine = LLMEngine(models.target, DRAFTERS["prompt_lookup"](models), MODES["commit"], 128)
        sparse = LLMEngine(models.target, DRAFTERS["prompt_lookup"](models), SPARSE, 128)
        _, metrics = generate(engine, models.prompts[0], settings_of({}))
        assert 0 < sum(metrics.confirmed_lengths) < sum(metrics.provisional_lengths), name
        assert generate(sparse, models.prompts[0], settings_of({}))[0] != plain(name, 0), name


def test_contexts_within_the_budget_need_no_commit() -> None:
    models = family("llama")
    verify = CommitVerify(replace(SPARSE, L0=1000))
    engine = LLMEngine(models.target, DRAFTERS["suffix"](models), verify, 128)
    got, metrics = generate(engine, models.prompts[0], settings_of({}))
    assert got == plain("llama", 0) and not metrics.commit_durations


@pytest.mark.slow
def test_several_sequences_commit_each_in_its_own_time() -> None:
    models = family("llama")
    engine = LLMEngine(models.target, DRAFTERS["auto"](models), MODES["commit"], 128)
    prompts = enumerate(models.prompts[:3])
    answers = engine.generate(Request(str(n), prompt, settings_of({})) for n, prompt in prompts)
    assert list(answers.values()) == [plain("llama", number) for number in range(3)]
