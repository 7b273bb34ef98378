"""How many nodes of a tree are verified, on a simulated machine: those that raise the tokens per second."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from schedule.virtual_machine import Clock, Machine

from ovspec.schedule.controller import AutoSchedule
from ovspec.schedule.schedule import ConstantSchedule, Schedule, SequenceOutcome, StepOutcome, StepState

LEVELS, WIDTH = 4, 4
NODES = LEVELS * WIDTH
DRAFT, PASS = 2_000.0, 10_000.0
# Rates of the likeliest token, of texts that change between steps.
TEXTS = {"sure": (0.9,), "unsure": (0.3,), "mixed": (0.95, 0.1)}
# Of what the likeliest token leaves, what its siblings have; the rest is in no tree.
SIBLINGS = (0.3, 0.1, 0.05)


class Fixed(ConstantSchedule):
    """Verifies the likeliest `size` nodes of every tree."""

    def __init__(self, size: int) -> None:
        super().__init__(NODES)
        self._size = size

    def least_confidence(self, confidences: Sequence[float]) -> float:
        return sorted(confidences, reverse=True)[self._size - 1]


class Everything(AutoSchedule):
    """`auto` without the rule."""

    def least_confidence(self, confidences: Sequence[float]) -> float:
        return 0.0


def confidences(rate: float) -> list[float]:
    """Of trees whose likeliest node has children in every level: that node's before its siblings'."""
    found: list[float] = []
    for level in range(LEVELS):
        before = rate**level
        found += [before * rate, *(before * (1 - rate) * share for share in SIBLINGS)]
    return found


def accepted(rate: float, least: float, rng: np.random.Generator) -> int:
    """Levels that decoding goes through the nodes that are left."""
    nodes = confidences(rate)
    for level in range(LEVELS):
        own = nodes[WIDTH * level : WIDTH * (level + 1)]
        shares = np.array([rate, *((1 - rate) * share for share in SIBLINGS)])
        node = int(rng.choice(WIDTH + 1, p=[*shares, 1 - shares.sum()]))
        if node == WIDTH or own[node] < least:
            return level
        if node:
            return level + 1
    return LEVELS


def speed(
    schedule: Schedule,
    rates: tuple[float, ...],
    row: float,
    seed: int = 0,
    steps: int = 1500,
    mixture: bool = False,
) -> float:
    """Tokens per microsecond, after the first steps."""

    def cost(rows: int) -> float:
        return PASS + row * (experts_read(rows) - experts_read(1) if mixture else rows - 1)

    clock = Clock(Machine(lambda rows, context, dense: cost(rows), lambda tokens: DRAFT), seed)
    rng, tokens, measured = np.random.default_rng(seed + 1), 0, (0, 0.0)
    for step in range(steps):
        if step == steps // 3:
            measured = tokens, clock.work
        rate = rates[step // 7 % len(rates)]
        state = StepState((512,), (10_000,), 63, trees=True, has_model=True)
        plan = schedule.plan(state)
        asked, least = plan.num_assistant_tokens, math.inf
        assert asked <= NODES
        if asked:
            likeliest = sorted(confidences(rate), reverse=True)[:asked]
            least = max(schedule.least_confidence(likeliest), likeliest[-1])
        proposed = sum(confidence >= least for confidence in confidences(rate))
        gained = accepted(rate, least, rng)
        outcome = StepOutcome(
            plan=plan,
            sequences=(SequenceOutcome(512, proposed, gained, 0, LEVELS if asked else 0, gained),),
            draft_duration=clock.took(DRAFT) if asked else 0.0,
            duration=clock.took(cost(proposed + 1)) + clock.took(20.0),
            model_tokens=asked,
        )
        schedule.observe(outcome)
        tokens += gained + 1
    return (tokens - measured[0]) / (clock.work - measured[1])


def experts_read(rows: int) -> float:
    """Experts that rows read which choose 4 of 32 each: of many rows, some read what others have read."""
    return 32 * (1 - (1 - 4 / 32) ** rows)


@pytest.mark.parametrize("expert", [50.0, 500.0, 2_000.0])
@pytest.mark.parametrize("text", TEXTS)
def test_auto_is_near_the_best_fixed_size_of_a_mixture(text: str, expert: float) -> None:
    """A tree is cut where the experts that its nodes read cost more than the nodes gain."""
    fixed = {size: speed(Fixed(size), TEXTS[text], expert, mixture=True) for size in (2, 4, 8, NODES)}
    auto = speed(AutoSchedule(NODES), TEXTS[text], expert, mixture=True)
    assert auto > 0.93 * max(1 / (PASS + 20.0), *fixed.values())


# At the last one no node is worth its row, and a draft that was paid for is dropped whole.
@pytest.mark.parametrize("row", [50.0, 500.0, 2_000.0, 20_000.0])
@pytest.mark.parametrize("text", TEXTS)
def test_auto_is_near_the_best_fixed_size(text: str, row: float) -> None:
    fixed = {size: speed(Fixed(size), TEXTS[text], row) for size in (2, 4, 8, NODES)}
    plain = 1 / (PASS + 20.0)
    assert speed(AutoSchedule(NODES), TEXTS[text], row) > 0.93 * max(plain, *fixed.values())


@pytest.mark.parametrize("mixture", [False, True])
def test_trees_of_a_size_each_beat_every_fixed_size_and_every_node(mixture: bool) -> None:
    """Where the text changes between steps, confidence tells which nodes are worth their rows or experts."""
    row, rates = 2_000.0, TEXTS["mixed"]
    best = max(speed(Fixed(size), rates, row, mixture=mixture) for size in range(1, NODES + 1))
    auto = speed(AutoSchedule(NODES), rates, row, mixture=mixture)
    assert auto > 1.05 * best and auto > 1.1 * speed(Everything(NODES), rates, row, mixture=mixture)


def test_nodes_of_several_trees_compete_for_the_rows_of_one_pass() -> None:
    """The sure sequence gets more of them than the unsure one; none is dropped before anything is known."""
    schedule, row = AutoSchedule(NODES), 1_000.0
    state = StepState((512, 512), (100, 100), 63, trees=True, has_model=True)
    pooled, tokens, time = [*confidences(0.95), *confidences(0.2)], 0, 0.0
    for step in range(40):
        plan = schedule.plan(state)
        assert step or schedule.least_confidence(pooled) <= min(pooled)
        size = plan.num_assistant_tokens
        both = (SequenceOutcome(512, size, size // 4),) * 2
        outcome = StepOutcome(plan, both, DRAFT * bool(size), PASS + 2 * row * size + 20.0)
        schedule.observe(outcome)
        tokens += 2 + sum(one.accepted for one in both)
        time += outcome.draft_duration + outcome.duration
    schedule.plan(state)
    least = schedule.least_confidence(pooled)
    sure, unsure = (sum(c >= least for c in confidences(rate)) for rate in (0.95, 0.2))
    assert sure > unsure
    # By hand: those that are likelier than what the time of a row has yielded.
    assert abs(sure + unsure - sum(likely > row * tokens / time for likely in pooled)) <= 1


def test_drafts_of_grammars_are_no_trees() -> None:
    """In a step of two requests, of which a grammar forces one: its rows say nothing of a tree's size."""
    schedule = AutoSchedule(NODES)
    plan = schedule.plan(StepState((512, 512), (99, 99), 63, trees=True, has_model=True))
    drafted, written = SequenceOutcome(512, 3, 1, judged=4, agreed=1), SequenceOutcome(512, 60, 60)
    schedule.observe(StepOutcome(plan, (drafted, written), 1.0, 1.0, model_tokens=3))
    assert schedule._nodes == 3
