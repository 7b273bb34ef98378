"""Which answers are right, and what a report compares."""

from __future__ import annotations

import pytest

from ovspec.rag.evaluation import WAYS, Example, Outcome
from ovspec.rag.evaluation_report import EvaluationReport


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
