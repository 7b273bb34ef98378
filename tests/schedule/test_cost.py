"""What steps cost: medians, monotone and linear between sizes and contexts, at the pace of the machine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovspec.schedule.cost import CostCurve, CostModel, isotonic
from ovspec.schedule.schedule import Plan, StepOutcome
from ovspec.schedule.trying import ProbeBudget


def step(drafted: int, verify: float, context: int = 1000, **rest: float) -> StepOutcome:
    return StepOutcome(Plan(drafted), (context,), (drafted,), (0,), 0.0, verify - 10.0, 10.0, **rest)  # type: ignore[arg-type]


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(1, 100), st.floats(1, 10)), min_size=1, max_size=12))
def test_isotonic_is_the_closest_ascending_curve(points: list[tuple[float, float]]) -> None:
    values, weights = [list(column) for column in zip(*points, strict=True)]
    fit = isotonic(values, weights)
    assert np.all(np.diff(fit) >= -1e-9)
    # The weighted sum is kept, and no ascending curve that is a shifted or clipped fit is closer.
    assert np.dot(fit, weights) == pytest.approx(np.dot(values, weights))

    def distance(curve: np.ndarray) -> float:
        return float(np.dot(weights, (curve - np.array(values)) ** 2))

    rng = np.random.default_rng(0)
    for _ in range(20):
        other = np.sort(fit + rng.normal(0, 5, len(fit)))
        assert distance(fit) <= distance(other) + 1e-6


def test_a_curve_takes_medians_and_lines_between_them() -> None:
    curve = CostCurve()
    for cost in (100.0, 102.0, 900.0):
        curve.add(0, cost)
    for cost in (140.0, 142.0, 144.0):
        curve.add(4, cost)
    np.testing.assert_allclose(curve.predict(np.array([0, 1, 2, 4])), [102.0, 112.0, 122.0, 142.0])
    # Beyond what was measured it rises gently: a longer draft is tried rather than feared.
    assert 142.0 < curve.predict(np.array([8]))[0] < 160.0


def test_an_unlikely_order_is_smoothed_until_it_was_measured_often() -> None:
    curve = CostCurve()
    for _ in range(3):
        curve.add(0, 120.0)
        curve.add(1, 100.0)
    np.testing.assert_allclose(curve.predict(np.array([0, 1])), [110.0, 110.0])
    for _ in range(8):
        curve.add(0, 120.0)
        curve.add(1, 100.0)
    np.testing.assert_allclose(curve.predict(np.array([0, 1])), [120.0, 100.0])


def test_drafting_nothing_costs_nothing_unless_it_was_seen_to() -> None:
    curve = CostCurve(from_zero=True)
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


def test_an_unknown_context_lies_on_the_line_through_two_known_ones() -> None:
    model = CostModel()
    for context in (1000, 2000):
        for _ in range(10):
            model.observe(step(0, 50.0 + 0.1 * context, context))
            model.observe(step(0, 50.0 + 0.1 * context, context))
        model.begin()
    # Each context has a pace of its own to settle in; costs are compared within one context only.
    known = model.cell((2000,)).verify_at(1.0).at(0)
    assert model.cell((4000,)).verify_at(1.0).at(0) >= known


def test_reading_a_prompt_is_no_part_of_drafting() -> None:
    model = CostModel()
    for caught_up, duration in ((1000, 50_040.0), (0, 40.0), (0, 40.0), (1000, 50_040.0)):
        model.observe(StepOutcome(Plan(4), (1000,), (4,), (0,), duration, 100.0, 10.0, caught_up=caught_up))
        model.observe(StepOutcome(Plan(4), (1000,), (4,), (0,), 40.0, 100.0, 10.0))
    assert model.cell((1000,)).draft.predict(np.array([4]))[0] == pytest.approx(40.0)
    assert model.read_cost == pytest.approx(50.0, rel=0.01)


def test_probes_get_their_share_of_the_time_and_no_more() -> None:
    budget, spent, time = ProbeBudget(), 0.0, 0.0
    for _ in range(20_000):
        time += 100.0
        if budget.affords(150.0):
            budget.charge(150.0, 150.0)
            spent += 150.0
            budget.confirm()
        else:
            budget.earn(100.0)
    assert 0.003 < spent / time < 0.015
    budget.renew()
    for _ in range(100):
        budget.earn(100.0)
    assert budget.affords(120.0)


def test_a_probe_that_gained_earns_no_credit() -> None:
    budget = ProbeBudget()
    budget.charge(-1000.0, 50.0)
    assert not budget.affords(1.0)
    # A hiccup is charged like a dear probe, not like a catastrophe.
    budget.charge(1e9, 50.0)
    for _ in range(200):
        budget.earn(100.0)
    assert budget.affords(0.0)
