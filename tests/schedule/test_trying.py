"""The price of trying: what the schedule `auto` may lose against plain decoding, whatever it believes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from schedule.virtual_machine import MAX_DRAFT, Machine, World

from ovspec.schedule.controller import AutoSchedule
from ovspec.schedule.schedule import ConstantSchedule
from ovspec.schedule.trying import LossAllowance


def spent_allowance() -> LossAllowance:
    """One that lost what it had and half a step more."""
    allowance = LossAllowance()
    allowance.settle(0.0, 8.5)
    return allowance


def test_a_full_store_covers_any_try_and_a_spent_one_asks_for_plain_decoding() -> None:
    allowance = LossAllowance()
    assert allowance.covers(100.0)
    allowance.settle(1.0, 8.0)
    assert allowance.covers(1.0) and not allowance.covers(1.5)
    allowance.settle(1.0, 2.5)
    assert not allowance.covers(0.0)


def test_plain_steps_pay_a_share_of_themselves_in() -> None:
    allowance = spent_allowance()
    for _ in range(99):
        allowance.earn()
    assert not allowance.covers(1.0)
    for _ in range(2):
        allowance.earn()
    assert allowance.covers(1.0)
    for _ in range(10_000):
        allowance.earn()
    # Idle time is not saved up: what is lost is bounded in every stretch of text.
    allowance.settle(0.0, 9.6)
    assert not allowance.covers(0.0)


def test_steps_whose_tokens_are_provisional_are_settled_together_with_the_commit() -> None:
    allowance = LossAllowance()
    for _ in range(10):
        allowance.settle(None, 2.0)
    assert allowance.covers(8.0)
    allowance.settle(13.0, 1.5)
    assert not allowance.covers(0.0)
    # What was not settled is not carried over to another prompt.
    allowance = LossAllowance()
    allowance.settle(None, 100.0)
    allowance.begin()
    allowance.settle(1.0, 1.0)
    assert allowance.covers(8.0)


def test_what_drafting_gained_may_be_lost_again_but_not_all() -> None:
    allowance = LossAllowance()
    allowance.settle(1000.0, 0.0)
    allowance.settle(0.0, 64.0)
    assert allowance.covers(0.0)
    allowance.settle(0.0, 0.5)
    assert not allowance.covers(0.0)


# A pass of some 1.3 ms; changing the number of rows costs more than half as much.
def tiny(**chaos: float) -> Machine:
    return Machine(lambda rows, _, __: 1200 + 100 * rows, lambda _: 40, switch=870, **chaos)


def over_plain(world: World, tokens: int, seed: int) -> float:
    auto, plain = (
        world.run(schedule, tokens, seed) for schedule in (AutoSchedule(MAX_DRAFT), ConstantSchedule(0))
    )
    return auto.rate() / plain.rate()


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("offers", "rate"), [(0.6, 0.05), (0.6, 0.25), (0.9, 0.15), (0.3, 0.5)])
def test_creative_text_with_lookups_that_mostly_fail(offers: float, rate: float, seed: int) -> None:
    world = World(tiny(), lambda _: rate, offers=lambda _: offers, lookup=65.0)
    assert over_plain(world, 2000, seed) > 0.97


@pytest.mark.parametrize("switch", [870.0, 0.0, 5000.0])
def test_shadow_drafts_that_lie_cost_no_more_than_the_share(switch: float) -> None:
    """Shadow drafts always come true, drafts never: no belief is right, and the account holds."""
    machine = Machine(lambda rows, _, __: 1200 + 100 * rows, lambda _: 40, switch=switch)
    lies = World(machine, lambda _: 0.0, lookup=65.0, shadowed=lambda _: 1.0)
    assert over_plain(lies, 6000, seed=1) > 0.97


@pytest.mark.parametrize("period", [10, 40, 150])
def test_a_text_that_turns_as_soon_as_it_is_believed(period: int) -> None:
    """Drafts hold for a while, then fail for three times as long."""
    turns = World(tiny(), lambda emitted: 0.9 if emitted % (4 * period) < period else 0.0, lookup=65.0)
    assert over_plain(turns, 6000, seed=1) > 0.97


def test_sparse_passes_come_before_a_plain_step_was_measured() -> None:
    """There is no cost to divide by then, and nothing at stake."""
    sparse = World(
        tiny(), lambda _: 0.5, confirmed=0.99, budget_scales=(1.0, math.inf), commit_intervals=(16,)
    )
    schedule = AutoSchedule(MAX_DRAFT)
    # No room for a draft, so none for the opening: the first choice is made on nothing.
    replace(sparse, asked=0).run(schedule, 50, seed=1)
    assert max(sparse.run(schedule, 200, seed=2).drafts) > 0


@pytest.mark.parametrize("rate", [0.45, 0.6])
def test_what_a_drafter_has_to_read_first_is_at_stake_too(rate: float) -> None:
    machine = Machine(lambda rows, _, __: 1500 + 50 * rows, lambda k: 850 * k, read=150, switch=900)
    assert over_plain(World(machine, lambda _: rate, context=60, reads=True), 6000, seed=1) > 0.98
