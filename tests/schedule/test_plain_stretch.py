"""Stretches of plain decoding under the schedule `auto`: what is counted, what goes by, and how they end."""

from __future__ import annotations

import math

import pytest

from ovspec.schedule.plain_stretch import PlainStretch
from ovspec.schedule.rest import Rest


def test_plain_steps_count_from_the_second_on() -> None:
    """The first one behind drafts pays for their change of shapes."""
    stretch = PlainStretch()
    steps = [stretch.take(is_plain) for is_plain in (True, True, False, False, True, True)]
    assert steps == [1, 1, 0, 0, 0, 1]
    assert stretch.goes_on


def test_another_prompt_begins_as_if_behind_a_plain_step() -> None:
    stretch = PlainStretch()
    stretch.take(False)
    stretch.rest.begin(2000.0, math.inf)
    assert not stretch.goes_on
    stretch.begin()
    assert stretch.goes_on and stretch.rest.left == 0
    assert stretch.take(True) == 1


def test_steps_that_went_by_count_with_the_next_plain_one_only() -> None:
    stretch = PlainStretch()
    stretch.rest.begin(2000.0, 3)
    stretch.rest.pass_by()
    stretch.rest.pass_by()
    assert stretch.take(True) == 3
    stretch.rest.forget()
    assert stretch.take(True) == 1
    stretch.rest.begin(2000.0, 3)
    stretch.rest.pass_by()
    assert stretch.take(False) == 0


def test_steps_after_the_end_are_held_against_the_pace_before_it_for_a_while() -> None:
    stretch = PlainStretch()
    assert stretch.slowdown(0, 3.0) == 1.0
    stretch.end(10, 2.0)
    assert stretch.slowdown(11, 3.0) == pytest.approx(1.5)
    # A machine that became faster makes drafts no cheaper than they are.
    assert stretch.slowdown(11, 1.0) == 1.0
    assert stretch.slowdown(73, 3.0) == pytest.approx(1.5)
    assert stretch.slowdown(74, 3.0) == 1.0


def test_a_rest_takes_a_time_and_no_more_than_it_may() -> None:
    rest = Rest()
    for step, most, left in ((2000.0, math.inf, 20), (1.0, math.inf, 32), (1e6, math.inf, 0), (2e3, 3, 3)):
        rest.begin(step, most)
        assert rest.left == left
    rest.pass_by()
    assert (rest.left, rest.gone, rest.duration) == (2, 1, 2e3)
    rest.end()
    assert rest.left == 0
    rest.forget()
    assert (rest.gone, rest.duration) == (0, 0.0)
