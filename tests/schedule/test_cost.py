"""What steps cost: medians of late, linear between sizes."""

from __future__ import annotations

import pytest

from ovspec.schedule.cost import CostCell, CostCurve, CostModel
from ovspec.schedule.schedule import Plan, SequenceOutcome, StepOutcome


def step(
    drafted: int, verify: float, context: int = 1000, commit: tuple[int, int] | None = None
) -> StepOutcome:
    return StepOutcome(Plan(drafted), (SequenceOutcome(context, drafted, commit=commit),), 0.0, verify)


def test_a_curve_takes_medians_and_lines_between_them() -> None:
    curve = CostCurve()
    for cost in (100.0, 102.0, 900.0):
        curve.add(0, cost)
    for cost in (140.0, 142.0, 144.0):
        curve.add(4, cost)
    assert [curve.at(size) for size in (0, 1, 2, 2.5, 4)] == [102.0, 112.0, 122.0, 127.0, 142.0]
    # Beyond the measured sizes the cost rises as between them.
    assert curve.at(8) == pytest.approx(182.0)


def test_drafting_nothing_costs_nothing_unless_it_was_seen_to() -> None:
    curve = CostCell().draft
    curve.add(4, 80.0)
    assert [curve.at(size) for size in (0, 1, 2)] == [0.0, 20.0, 40.0]
    for _ in range(9):
        curve.add(0, 30.0)
    assert curve.at(0) == 30.0


def test_what_a_machine_that_slows_down_took_before_is_forgotten() -> None:
    model = CostModel()
    for turn in range(300):
        pace = 1.0 if turn < 100 else 3.0
        drafted = 4 if turn % 20 < 16 else 0
        model.observe(step(drafted, pace * (200.0 if drafted else 100.0)))
    cell = model.cell((1000,))
    fast = [cell.curve(None).at(size) for size in (0, 4)]
    assert fast[1] / fast[0] == pytest.approx(2.0, rel=0.02)
    assert fast[0] == pytest.approx(300.0, rel=0.05)


def test_one_sample_far_off_the_others_counts_for_twice_what_was_expected() -> None:
    curve = CostCurve()
    curve.add(0, 1000.0)
    curve.add(4, 9700.0)
    assert curve.at(4) == pytest.approx(2400.0)
    for _ in range(2):
        curve.add(4, 9600.0)
    assert curve.at(4) == 9600.0


def test_one_slow_step_makes_no_longer_draft_dear() -> None:
    curve = CostCurve()
    for _ in range(9):
        curve.add(0, 100.0)
        curve.add(8, 120.0)
    curve.add(4, 180.0)
    assert (curve.at(4), curve.at(8)) == (120.0, 120.0)
    costs = [curve.at(size) for size in range(12)]
    assert costs == sorted(costs)


def test_a_new_context_starts_from_the_nearest_one_and_is_soon_its_own() -> None:
    model = CostModel()
    for _ in range(10):
        model.observe(step(0, 100.0, 1000))
        model.observe(step(4, 200.0, 1000))
    far = model.cell((4000,)).curve(None)
    assert (far.at(0), far.at(4)) == (100.0, 200.0)
    for _ in range(9):
        model.observe(step(4, 500.0, 4000))
    assert far.at(4) == 500.0 and model.cell((1000,)).curve(None).at(4) == 200.0


def test_the_first_pass_of_a_shape_is_not_counted() -> None:
    model = CostModel()
    for duration in (100.0, 100.0, 100.0):
        model.observe(step(0, duration))
    model.observe(step(4, 5000.0))
    model.observe(step(4, 120.0))
    assert model.cell((1000,)).curve(None).at(4) == 120.0


def test_a_commit_is_a_dense_pass() -> None:
    model = CostModel()
    model.observe(step(0, 40.0))
    model.observe(step(4, 300.0, commit=(16, 16)))  # a draft follows what it confirms
    cell = model.cell((1000,))
    assert cell.curve(0).at(20) == 300.0 and cell.curve(8).at(0) == 40.0


def test_reading_a_prompt_is_no_part_of_drafting() -> None:
    model = CostModel()
    for caught_up, duration in ((1000, 50_000.0), (0, 40.0), (0, 40.0), (1000, 50_000.0)):
        model.observe(StepOutcome(Plan(4), (SequenceOutcome(1000, 4),), duration, 110.0, caught_up, 4))
    assert model.cell((1000,)).draft.at(4) == pytest.approx(40.0)
    assert model.read_cost == pytest.approx(50.0, rel=0.01)
