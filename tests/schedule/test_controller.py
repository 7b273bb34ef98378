"""The schedule `auto` on simulated machines and texts: never much below the best fixed setting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from prompts import PROMPTS
from schedule.virtual_machine import MAX_DRAFT, Machine, World
from settings import F32

import ovspec
from ovspec.schedule.controller import AutoSchedule
from ovspec.schedule.schedule import ConstantSchedule, Plan, Schedule, SequenceOutcome, StepOutcome, StepState

LENGTHS = (0, 1, 2, 4, 8)
TOKENS = 1000
SEEDS = (1, 2, 3)


def small(**chaos: float) -> Machine:
    """A model of some megabytes: every row and every draft token counts."""
    return Machine(lambda rows, _, __: 1700 + 90 * rows, lambda k: 650 * k, **chaos)


def large(**chaos: float) -> Machine:
    """A model that is read from memory: more rows cost little."""
    return Machine(lambda rows, _, __: 25000 + 300 * rows, lambda k: 4000 * k, **chaos)


def long_context(**chaos: float) -> Machine:
    """Stock attention at 16k: two rows cost three times as much as one."""

    def verify(rows: int, _: float, __: float) -> float:
        return 127e3 if rows == 1 else 410e3 + 10e3 * rows

    return Machine(verify, lambda k: 15e3 * k, **chaos)


NOISY = {"noise": 0.12, "hiccup": 0.02, "drift": 0.003}


def steady(rate: float) -> Callable[[int], float]:
    return lambda _: rate


def pooled(rates: list[float]) -> float:
    return float(len(rates) / np.sum(1.0 / np.array(rates)))


def compare(world: World) -> tuple[float, float]:
    """Tokens per second of `auto` over those of the best fixed length, and over plain decoding.

    After the first 64 tokens of each of several calls of one pipeline, the first of them included for
    plain decoding only: what the best length is has to be found out first.
    """
    # Where more is accepted a call has fewer steps, and chance a larger part.
    tokens = int(TOKENS / (1.3 - world.acceptance(0)))
    schedule = AutoSchedule(MAX_DRAFT)
    first = world.run(schedule, tokens, seed=100).rate()
    auto = [world.run(schedule, tokens, seed).rate() for seed in SEEDS]
    fixed = {
        length: pooled([world.run(ConstantSchedule(length), tokens, seed).rate() for seed in SEEDS])
        for length in LENGTHS
    }
    return pooled(auto) / max(fixed.values()), pooled([first, *auto]) / fixed[0]


@pytest.mark.parametrize("rate", [0.9, 0.6, 0.1])
@pytest.mark.parametrize("machine", [small, large, long_context])
def test_close_to_the_best_fixed_length_and_no_worse_than_plain(
    machine: Callable[..., Machine], rate: float
) -> None:
    context = 16384 if machine is long_context else 512
    over_best, over_plain = compare(World(machine(), steady(rate), context))
    assert over_best > 0.89
    assert over_plain > 0.95


@pytest.mark.parametrize("rate", [0.9, 0.1])
@pytest.mark.parametrize("machine", [small, large])
def test_noise_hiccups_and_drift_of_the_machine(machine: Callable[..., Machine], rate: float) -> None:
    over_best, over_plain = compare(World(machine(**NOISY), steady(rate)))
    assert over_best > 0.89
    assert over_plain > 0.95


def test_recovery_is_noticed() -> None:
    recovers = World(large(), lambda emitted: 0.02 if emitted < 400 else 0.95)
    run = recovers.run(AutoSchedule(MAX_DRAFT), 1600, seed=1)
    best = recovers.run(ConstantSchedule(8), 1600, seed=1)
    assert run.rate(64, 400) > 0.97 * recovers.run(ConstantSchedule(0), 400, seed=1).rate()
    assert run.rate(900, 1600) > 0.9 * best.rate(900, 1600)


def test_several_sequences_together() -> None:
    world = World(large(), steady(0.75))
    rates = {}
    for length in LENGTHS:
        rates[length] = world.run(ConstantSchedule(length), 600, seed=3, sequences=4).rate()
    schedule = AutoSchedule(MAX_DRAFT)
    world.run(schedule, 600, seed=4, sequences=4)
    assert world.run(schedule, 600, seed=3, sequences=4).rate() > 0.93 * max(rates.values())


def test_context_that_grows_past_the_point_where_drafting_pays() -> None:
    """One row costs a little more with every token of context, several rows much more."""

    def verify(rows: int, context: float, _: float) -> float:
        return 20000 + 200 * rows + context * (3.0 if rows == 1 else 14.0 + rows)

    world = World(Machine(verify, lambda k: 1000 * k), steady(0.7), context=256)
    schedule = AutoSchedule(MAX_DRAFT)
    run = world.run(schedule, 8000, seed=5)
    plain = world.run(ConstantSchedule(0), 8000, seed=5)
    drafted = world.run(ConstantSchedule(4), 8000, seed=5)
    assert run.rate(64, 500) > 0.9 * drafted.rate(64, 500) > 1.2 * plain.rate(64, 500)
    assert run.rate(6000, 8000) > 0.97 * plain.rate(6000, 8000) > drafted.rate(6000, 8000)


class Fixed(Schedule):
    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def plan(self, state: StepState) -> Plan:
        return self._plan

    def observe(self, outcome: StepOutcome) -> None:
        pass


def committed(rate: float, confirmed: float) -> World:
    def verify(rows: int, _: float, dense: bool) -> float:
        return 29e3 * (1 + 0.03 * rows) + 100e3 * (0.9 + 0.1 * rows) * (1.0 if dense else 0.1)

    return World(
        Machine(verify, lambda k: 4e3 * k),
        steady(rate),
        context=16384,
        confirmed=confirmed,
        commit_intervals=(0, 4, 8, 16, 32),
    )


def test_requests_that_commit_at_different_steps() -> None:
    """They never have nothing pending together, and the choice is made all the same."""
    schedule, world, pending = AutoSchedule(MAX_DRAFT), committed(0.0, 1.0), [3, 5]
    chosen = set()
    for step in range(400):
        contexts = (16384 + step,) * 2
        state = StepState(
            contexts=contexts,
            remaining=(1000,) * 2,
            max_draft=0,
            pending=tuple(pending),
            commit_intervals=world.commit_intervals,
        )
        plan = schedule.plan(state)
        interval, dense = plan.commit_interval or 1, plan.commit_interval == 0
        chosen.add(plan.commit_interval)
        due = [count for count in pending if count >= interval]
        all_dense = dense or len(due) == 2
        commits = [(count, count) if count in due else None for count in pending]
        both = tuple(SequenceOutcome(contexts[0], commit=commit) for commit in commits)
        duration = world.machine.verify(2 + sum(due), contexts[0], all_dense)
        schedule.observe(StepOutcome(plan, both, 0.0, duration))
        pending = [0 if dense or count >= interval else count + 1 for count in pending]
    assert len(chosen) > 2 and not dense


def test_commits_grow_by_what_was_measured() -> None:
    """One confirmed commit says little of one of eight times the rows; a given interval holds."""
    schedule, world = AutoSchedule(MAX_DRAFT), committed(0.0, 1.0)
    longest, plans = 4, list[Plan]()
    for step in range(200):
        state = StepState((16384 + step,), (1000,), 0, pending=(0,), commit_intervals=(0, 4, 8, 16, 32))
        plan = schedule.plan(state)
        plans.append(plan)
        rows = plan.commit_interval or 0
        assert rows <= 2 * longest
        longest = max(longest, rows)
        for count in (0, rows) if rows else (0,):  # one sparse step, then the commit
            dense = count == rows
            one = SequenceOutcome(16384 + step, commit=(count, count) if count else None)
            schedule.observe(StepOutcome(plan, (one,), 0.0, world.machine.row(1 + count, 16384, dense)))
    assert {plan.commit_interval for plan in plans} >= {4, 8, 16, 32}
    given, fresh = state._replace(commit_intervals=(0, 32)), AutoSchedule(MAX_DRAFT)
    fresh.observe(StepOutcome(Plan(0, 0), (SequenceOutcome(16384),), 0.0, 100e3))
    assert fresh.plan(given).commit_interval == 32


@pytest.mark.parametrize("confirmed", [0.995, 0.9])
def test_commits_without_drafts_choose_their_interval(confirmed: float) -> None:
    world, schedule = replace(committed(0.0, confirmed), asked=0), AutoSchedule(MAX_DRAFT)
    auto = pooled([world.run(schedule, TOKENS, seed).rate() for seed in SEEDS])
    fixed = [
        pooled([world.run(Fixed(Plan(0, interval)), TOKENS, seed).rate() for seed in SEEDS])
        for interval in world.commit_intervals
    ]
    assert auto > 0.9 * max(fixed)


@pytest.mark.parametrize(("rate", "confirmed"), [(0.8, 0.995), (0.8, 0.9), (0.3, 0.995), (0.05, 0.9)])
def test_committed_mode_chooses_drafts_and_interval(rate: float, confirmed: float) -> None:
    world = committed(rate, confirmed)
    schedule = AutoSchedule(MAX_DRAFT)
    world.run(schedule, TOKENS, seed=9)
    auto = pooled([world.run(schedule, TOKENS, seed).rate() for seed in SEEDS])
    plain = pooled([world.run(Fixed(Plan(0, 0)), TOKENS, seed).rate() for seed in SEEDS])
    fixed = [
        pooled([world.run(Fixed(Plan(length, interval)), TOKENS, seed).rate() for seed in SEEDS[:2]])
        for length in (0, 2, 4, 8)
        for interval in world.commit_intervals
    ]
    assert auto > 0.9 * max(fixed)
    assert auto > 0.97 * plain


@pytest.mark.parametrize(
    ("confirmed", "lookup", "sequences"),
    [*product((0.6, 0.8, 0.9, 0.98), (False, True), (1,)), (0.6, False, 4), (0.98, False, 4)],
)
def test_a_fixed_number_of_drafts_leaves_the_interval_open(
    confirmed: float, lookup: bool, sequences: int
) -> None:
    world = replace(committed(0.6, confirmed), asked=4, lookup=lookup)
    schedule = AutoSchedule(4, fixed=True)
    first = world.run(schedule, TOKENS, 9, sequences)
    assert set(first.drafts[: len(first.drafts) // 2]) == {4}
    auto = pooled([first.rate(), *(world.run(schedule, TOKENS, seed, sequences).rate() for seed in SEEDS)])
    plain = pooled([world.run(Fixed(Plan(4, 0)), TOKENS, seed, sequences).rate() for seed in (9, *SEEDS)])
    fixed = [
        pooled([world.run(Fixed(Plan(4, interval)), TOKENS, seed, sequences).rate() for seed in SEEDS[:2]])
        for interval in world.commit_intervals
    ]
    assert auto > 0.9 * max(fixed)
    assert auto > 0.95 * plain


def test_bound_and_room_are_kept() -> None:
    schedule, world = AutoSchedule(MAX_DRAFT), World(large(), steady(0.95))
    assert max(replace(world, asked=3).run(schedule, 300, seed=1).drafts) == 3
    assert max(world.run(schedule, 600, seed=1).drafts) > 3
    assert set(replace(world, asked=0).run(schedule, 100, seed=1).drafts) == {0}


def test_a_prompt_too_long_to_be_worth_reading_twice() -> None:
    """The drafter would have to read 16k tokens before it could help with the last few."""
    machine = Machine(lambda rows, _, __: 25000 + 300 * rows, lambda k: 2000 * k, read=2000.0)
    schedule = AutoSchedule(MAX_DRAFT)
    world = World(machine, steady(0.9), context=16384, reads=True)
    world.run(schedule, 400, seed=1)
    assert max(world.run(schedule, 40, seed=2).drafts) == 0
    assert max(world.run(schedule, 20000, seed=2).drafts[:50]) > 0


def test_auto_gives_the_text_of_plain_decoding(
    demo_ir: Path, make_pipeline: Callable[..., ovspec.LLMPipeline]
) -> None:
    draft = ovspec.draft_model(demo_ir / "draft")
    plain, drafted = make_pipeline(), ovspec.LLMPipeline(demo_ir, draft_model=draft, **F32)
    asked: list[int] = []
    for prompt in PROMPTS[:6]:
        want = plain.generate([prompt], max_new_tokens=96, ignore_eos=True)
        got = drafted.generate([prompt], max_new_tokens=96, ignore_eos=True)
        assert got.texts == want.texts
        asked += got.perf_metrics.raw_metrics.num_assistant_tokens
    assert any(asked)
