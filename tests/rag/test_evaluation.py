"""Which answers are right, and the intervals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ovspec.rag.evaluation import WAYS, Example, Outcome
from ovspec.rag.evaluation_report import EvaluationReport
from ovspec.rag.interval import Interval
from ovspec.rag.questions import contains


def test_an_answer_is_right_by_its_words() -> None:
    assert contains("It was the Zebra, of course.", ["zebra"])
    assert contains("in A.D. 1066", ["a d 1066"]) and contains("the answer: 3-2", ["3 2"])
    assert not contains("zebras", ["zebra"]) and not contains("", ["zebra"])
    assert contains("x y", ["no", "the y"])


@pytest.mark.parametrize(("hits", "total"), [(0, 20), (3, 20), (20, 20), (57, 200)])
def test_the_interval_of_a_share_is_wilsons(hits: int, total: int) -> None:
    found = Interval.of_share(hits, total)
    expected = stats.binomtest(hits, total).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_paired_intervals_cover_what_is_true() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(100):
        theirs = rng.normal(100, 40, 60)
        ours = theirs * 0.5 + rng.normal(3, 4, 60)  # pairs move together: their difference is what is known
        found = Interval.of_paired(ours, theirs, lambda a, b: (a - b * 0.5).mean(axis=-1))
        covered += found.low <= 3 <= found.high
        assert found.high - found.low < 4
    assert covered >= 88


def test_a_report_compares_the_same_questions() -> None:
    examples = [
        Example(
            str(number),
            True,
            number % 2 == 0,
            {
                WAYS[0]: Outcome("a", number % 4 == 0, 100.0 + number, 1000),
                WAYS[1]: Outcome("a", number % 2 == 0, 50.0 + number / 2, 300),
                WAYS[2]: Outcome("a", number % 2 == 0, 25.0 + number / 4, 200),
            },
        )
        for number in range(40)
    ]
    report = EvaluationReport(examples)
    assert report.accuracy_difference(WAYS[1]).value == pytest.approx(0.25)
    assert report.latency_ratio(WAYS[2]).value == pytest.approx(0.25)
    ratio = report.token_ratio(WAYS[1])
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((0.3, 0.3, 0.3))
    assert report.as_json()["ways"][WAYS[2]]["latency_ratio"]["high"] == pytest.approx(0.25)
