"""Summaries against tables worked out by hand, and sweeps of settings."""

from __future__ import annotations

import json
import math

import pytest

from ovspec import CommitVerify, SparseVerify
from ovspec.eval import Report, Setting, sweep
from ovspec.eval.divergence import Decision
from ovspec.eval.results import KL, Outcome, Reference, Result, Summary
from ovspec.generation.metrics import PerfMetrics
from ovspec.generation.raw_metrics import RawPerfMetrics
from ovspec_models import ModelInfo, demo_pair_path

REFERENCES = [
    Reference(1, 100, [5, 6, 7, 8], 20.0),
    Reference(2, 50, [5, 6], 10.0),
    Reference(4, 70, [5], None),
]
# 20 tokens a second.
REFERENCE = PerfMetrics(raw_metrics=RawPerfMetrics(m_durations=[50_000.0] * 4))
A = [
    Decision(0.5, True, 2.0),
    Decision(1.5, False, 0.05),
    Decision(4.0, False, 0.3),
]
B = [Decision(0.0, True, 0.09)]
OUTCOMES = [
    Outcome(4, 2, 0.05, 30.0, 1.5, A),
    Outcome(2, None, None, 5.0, 0.5, B),
    Outcome(1, None, None, None, None, []),
]


def result() -> Result:
    raw = RawPerfMetrics(m_durations=[20_000.0] * 4, attended_tokens=30.0, context_tokens=120.0)
    raw.count_draft(4, 3, 4)
    raw.count_draft(4, 1, 4)
    return Result(Setting(SparseVerify(budget=64)), OUTCOMES, PerfMetrics(raw_metrics=raw))


def test_summary_is_the_hand_computed_one() -> None:
    assert result().summary(REFERENCES, REFERENCE, 0.1) == Summary(
        prompts=3,
        identical=2,
        diverged_at_low_margin=1,
        median_first_divergence=2.0,
        matched_prefix=(2 / 4 + 1 + 1) / 3,
        positions=4,
        top1_agreement=0.5,
        disagreements=2,
        disagreements_at_low_margin=1,
        low_margin_positions=2,
        kl=KL(mean=1.5, median=1.5, p99=4.0, max=4.0),
        tokens_per_s=50.0,
        speedup=2.5,
        mean_acceptance_length=3.0,
        acceptance_rate=0.5,
        attention_density=0.25,
        prefill_density=1.0,
        expert_density=1.0,
        experts_read=0.0,
        ffn_density=1.0,
    )


@pytest.mark.parametrize(
    ("low_margin", "diverged", "disagreements", "positions"),
    [(0.0, 0, 0, 0), (0.05, 0, 0, 0), (0.06, 1, 1, 1), (0.31, 1, 2, 3), (9.0, 1, 2, 4)],
)
def test_low_margin_is_below_the_threshold(
    low_margin: float, diverged: int, disagreements: int, positions: int
) -> None:
    summary = result().summary(REFERENCES, REFERENCE, low_margin)
    assert summary.diverged_at_low_margin == diverged
    assert summary.disagreements_at_low_margin == disagreements
    assert summary.low_margin_positions == positions


def test_nothing_measured_is_none() -> None:
    lone = Result(Setting("dense"), OUTCOMES[2:], PerfMetrics()).summary(REFERENCES[2:], REFERENCE, 0.1)
    assert lone.kl is lone.top1_agreement is lone.tokens_per_s is lone.speedup is None
    assert lone.median_first_divergence is None
    assert (lone.identical, lone.matched_prefix, lone.positions) == (1, 1.0, 0)


def test_percentiles_are_values_that_occurred() -> None:
    found = KL.of([float(value) for value in range(200)])
    assert (found.mean, found.median, found.p99, found.max) == (99.5, 100.0, 198.0, 199.0)
    assert KL.of([0.25]) == KL(0.25, 0.25, 0.25, 0.25)
    assert KL.of([0.0, math.inf]).max == math.inf


def test_prompts_in_json() -> None:
    first, second, third = result().prompts_json(REFERENCES, 0.1)
    assert json.loads(json.dumps(first)) == {
        "line": 1,
        "num_generated_tokens": 4,
        "identical": False,
        "first_divergence": 2,
        "divergence_margin": 0.05,
        "matched_prefix": 0.5,
        # Positions are those of the output: the first decision is about the second token.
        "disagreements": [2, 3],
        "low_margin_positions": [2],
        "kl": [0.5, 1.5, 4.0],
        "tokens_per_s": 30.0,
        "speedup": 1.5,
    }
    assert (second["line"], second["identical"], second["low_margin_positions"]) == (2, True, [1])
    assert (third["line"], third["kl"], third["speedup"]) == (4, [], None)


def test_sweep_keeps_everything_else() -> None:
    base = SparseVerify(L0=96, anchor_layers=(0, 2))
    found = sweep(base, "rho", (0.1, 0.5))
    assert [setting.verify for setting in found] == [
        SparseVerify(L0=96, rho=0.1, anchor_layers=(0, 2)),
        SparseVerify(L0=96, rho=0.5, anchor_layers=(0, 2)),
    ]
    assert [setting.name for setting in found] == ["L0 96, rho 0.1", "L0 96, rho 0.5"]
    commit = sweep(CommitVerify(interval=20), "budget", (64,))
    assert [setting.verify for setting in commit] == [CommitVerify(SparseVerify(budget=64), 20)]
    assert commit[0].name == "commit, budget 64" and commit[0].sparse == SparseVerify(budget=64)
    assert Setting("dense").name == "dense" and Setting("dense").sparse is None


@pytest.mark.parametrize(
    ("verify", "field", "values", "expected"),
    [
        ("dense", "budget", (64,), "--budgets sweeps sparse verification: it contradicts --verify dense"),
        (SparseVerify(budget=9), "budget", (64,), "--budgets contradicts --budget 9"),
        (SparseVerify(), "budget", (64, 32, 64), "--budgets 64,32,64: name each value once"),
        (SparseVerify(), "budget", (0,), "budget=0: expected a number of tokens of at least 1"),
        (SparseVerify(L0=5), "budget", (64,), "budget=64 contradicts L0=5"),
        (SparseVerify(), "rho", (1.5,), "rho=1.5: expected a share between 0 and 1"),
    ],
)
def test_sweep_that_makes_no_sense(
    verify: SparseVerify, field: str, values: tuple[float, ...], expected: str
) -> None:
    with pytest.raises(ValueError, match=expected.split(":")[0]) as refused:
        sweep(verify, field, values)
    assert expected in str(refused.value)


def test_the_table_has_the_median_of_the_json_object() -> None:
    """Of an even number of outputs it may lie between two tokens: 2.5, which was shown as 2."""
    diverged = [Outcome(4, at, 0.05, 30.0, 1.5, A) for at in (2, 3)]
    references = [Reference(line, 100, [5, 6, 7, 8], 20.0) for line in (1, 2)]
    found = Result(Setting(SparseVerify(budget=64)), diverged, PerfMetrics())
    report = Report(
        model=ModelInfo.read(demo_pair_path()),
        drafter=None,
        draft_model=None,
        reference="dense",
        num_assistant_tokens=0,
        max_new_tokens=4,
        context=None,
        low_margin=0.1,
        precisions={},
        references=references,
        reference_metrics=REFERENCE,
        results=[found],
    )
    assert report.as_json()["settings"][0]["median_first_divergence"] == 2.5
    (column,) = (one for one in report.tables()[0].columns if str(one.header).startswith("diverges"))
    assert list(column.cells) == ["", "2.5"]
