"""How many rows of prompts a pass reads beside requests that decode."""

from __future__ import annotations

from engine.test_llm_engine import engine_of, settings_of
from families import family

from ovspec.engine.requests.request import Request
from ovspec.engine.scheduler import PassCosts
from ovspec.generation.raw_metrics import RawPerfMetrics


def rows_of_passes(decoding: float, row: float, costs: PassCosts, passes: int) -> list[int]:
    """Rows that passes read while a prompt is always waiting, with the given costs."""
    found = []
    for _ in range(passes):
        rows = 0 if costs.is_due else costs.rows(512, 1, 1)
        costs.observe(decoding + row * rows, rows)
        found.append(rows)
    return found


def test_rows_follow_what_they_cost_though_a_prompt_always_waits() -> None:
    """What decoding takes is measured at the start, and again where it has grown."""
    costs = PassCosts()
    assert sum(rows_of_passes(100.0, 1.0, costs, 50)) > 40 * 80
    grown = rows_of_passes(1000.0, 1.0, costs, 200)
    assert min(rows for rows in grown[100:] if rows) > 200 and grown.count(0) < 10


def test_an_answer_that_goes_on_counts_no_time_from_before_it() -> None:
    """Times of tokens begin with the request, not with the clock."""
    metrics, prompt = RawPerfMetrics(), family("llama").prompts[0]
    request = Request("one", prompt, settings_of(), metrics=metrics, answered=prompt[:3])
    engine_of().generate([request])
    assert metrics.m_durations and max(metrics.m_durations) < 60e6
