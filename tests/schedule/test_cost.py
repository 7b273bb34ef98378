"""What steps cost: medians, linear between sizes, at the pace of the machine."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import pytest

from ovspec.schedule.cost import CostCell, CostCurve, CostModel
from ovspec.schedule.schedule import Plan, StepOutcome


def step(drafted: int, verify: float, context: int = 1000, **rest: float) -> StepOutcome:
    return StepOutcome(Plan(drafted), (context,), (drafted,), (0,), 0.0, verify, **rest)  # type: ignore[arg-type]


def test_a_curve_takes_medians_and_lines_between_them() -> None:
    curve = CostCurve()
    for cost in (100.0, 102.0, 900.0):
        curve.add(0, cost)
    for cost in (140.0, 142.0, 144.0):
        curve.add(4, cost)
    np.testing.assert_allclose(curve.predict(np.array([0, 1, 2, 4])), [102.0, 112.0, 122.0, 142.0])
    # Beyond the measured sizes the cost rises slowly, so that longer drafts are tried.
    assert 142.0 < curve.predict(np.array([8]))[0] < 160.0


def test_drafting_nothing_costs_nothing_unless_it_was_seen_to() -> None:
    curve = CostCell(deque()).draft
    curve.add(4, 80.0)
    np.testing.assert_allclose(curve.predict(np.array([0, 1, 2])), [0.0, 20.0, 40.0])
    for _ in range(9):
        curve.add(0, 30.0)
    assert curve.predict(np.array([0]))[0] == 30.0


def test_a_machine_that_slows_down_leaves_the_ratios_alone() -> None:
    model = CostModel()
    pace = 1.0
    for turn in range(300):
        pace = 1.0 if turn < 100 else 3.0
        block = 4 if turn % 20 < 16 else 0
        model.observe(step(block, pace * (200.0 if block else 100.0)))
    curve = model.cell((1000,)).verify_at(1.0)
    fast = curve.predict(np.array([0, 4]))
    assert fast[1] / fast[0] == pytest.approx(2.0, rel=0.02)
    assert model.pace * fast[0] == pytest.approx(300.0, rel=0.05)


def test_the_first_step_of_other_shapes_is_told_apart() -> None:
    model = CostModel()
    for turn in range(60):
        drafted = 4 if turn % 10 < 5 else 0
        first = turn % 5 == 0
        model.observe(step(drafted, (200.0 if drafted else 100.0) + (70.0 if first else 0.0)))
    cell = model.cell((1000,))
    np.testing.assert_allclose(cell.verify_at(1.0).predict(np.array([0, 4])), [100.0, 200.0], rtol=0.02)
    assert cell.switch == pytest.approx(70.0, rel=0.05)


def test_no_step_is_left_without_a_cost_where_changes_of_shapes_were_slow() -> None:
    model = CostModel()
    for turn in range(200):
        model.observe(step(4 if turn % 10 < 5 else 0, 100.0 if turn % 5 else 5000.0))
    # This number of rows always follows another one, and takes less time than the measured cost of a change.
    for _ in range(5):
        model.observe(step(7, 150.0))
        model.observe(step(0, 100.0))
    assert 0.0 < model.cell((1000,)).verify_at(1.0).at(7) <= 150.0


def test_one_sample_far_off_the_others_counts_for_twice_the_dearest_of_them() -> None:
    curve = CostCurve()
    curve.add(0, 1000.0)
    curve.add(4, 9700.0)
    assert curve.at(4) == 2000.0
    curve.add(4, 9600.0)
    assert curve.at(4) == 9600.0


def test_an_unknown_context_starts_from_the_nearest_one_and_is_soon_its_own() -> None:
    model = CostModel()
    for _ in range(10):
        model.observe(step(0, 100.0, 1000))
    far = model.cell((4000,)).verify_at(1.0)
    assert far.at(0) == 100.0 and not far.is_known(0)
    for _ in range(3):
        far.add(0, 300.0)
    assert far.at(0) == 300.0 and model.cell((1000,)).verify_at(1.0).at(0) == 100.0


def test_a_dense_pass_costs_what_commits_cost_until_it_was_measured() -> None:
    cell = CostCell(deque())
    cell.verify_at(1.0).add(0, 40.0)
    assert cell.verify_at(math.inf).at(0) == 40.0
    cell.commit.add(16, 300.0)
    assert cell.verify_at(math.inf).at(0) == 300.0 and cell.verify_at(2.0).at(0) == 40.0


def test_reading_a_prompt_is_no_part_of_drafting() -> None:
    model = CostModel()
    for caught_up, duration in ((1000, 50_040.0), (0, 40.0), (0, 40.0), (1000, 50_040.0)):
        model.observe(StepOutcome(Plan(4), (1000,), (4,), (0,), duration, 110.0, caught_up=caught_up))
        model.observe(StepOutcome(Plan(4), (1000,), (4,), (0,), 40.0, 110.0))
    assert model.cell((1000,)).draft.predict(np.array([4]))[0] == pytest.approx(40.0)
    assert model.read_cost == pytest.approx(50.0, rel=0.01)
