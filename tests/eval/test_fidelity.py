"""Evaluations of the demo pair: what must hold exactly in f32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from prompts import PROMPTS, STORY

from ovspec import CommitVerify, SparsePrefill, SparseVerify
from ovspec.eval import Report, plot_fidelity
from ovspec.eval.divergence import Decision
from ovspec.eval.results import KL, Summary

Evaluate = Callable[..., Report]
TEXTS = [STORY, PROMPTS[0]]
TIGHT = SparseVerify(budget=64)
EVERYTHING = SparseVerify(budget=100_000)


def assert_identical(summary: Summary) -> None:
    assert summary.identical == summary.prompts
    assert summary.median_first_divergence is None and summary.matched_prefix == 1.0


def assert_same_decisions(summary: Summary) -> None:
    assert summary.top1_agreement == 1.0 and summary.disagreements == 0
    # In f32 a pass with a budget that covers everything is the dense pass.
    assert summary.kl is not None and summary.kl.max < 1e-9


@pytest.mark.parametrize("drafter", [None, "assistant"])
def test_dense_is_dense(evaluate: Evaluate, drafter: str | None) -> None:
    report = evaluate(TEXTS, ["dense"], drafter)
    (summary,) = report.summaries()
    assert_identical(summary)
    assert_same_decisions(summary)
    assert summary.positions == sum(len(reference.tokens) - 1 for reference in report.references) == 30
    assert summary.attention_density == 1.0
    assert not any("LOSSY" in note for note in report.notes())


def assert_tight(report: Report, drafter: str | None) -> None:
    tight = report.summaries()[0]
    assert tight.kl is not None and tight.kl.mean > 0.01 and tight.disagreements > 0
    assert tight.attention_density < 0.5
    # The story alone is longer than the budget.
    assert report.results[0].outcomes[0].first_divergence is not None and tight.matched_prefix < 1.0
    assert (tight.mean_acceptance_length > 1.0) == (drafter is not None)
    assert report.notes()[0].startswith("budget 64: LOSSY, sparse verification approximates the model; ")


@pytest.mark.parametrize("drafter", [None, "assistant"])
def test_tight_budget_diverges_and_one_that_covers_everything_does_not(
    evaluate: Evaluate, drafter: str | None
) -> None:
    report = evaluate(TEXTS, [TIGHT, EVERYTHING], drafter)
    assert_tight(report, drafter)
    tight, everything = report.summaries()
    assert tight.identical == 1
    assert_identical(everything)
    assert_same_decisions(everything)
    assert everything.attention_density == 1.0


@pytest.mark.parametrize("drafter", ["prompt_lookup", "suffix", "sparse_self", "auto"])
def test_every_drafter(evaluate: Evaluate, drafter: str) -> None:
    assert_tight(evaluate([STORY], [TIGHT], drafter, reference="plain"), drafter)


@pytest.mark.parametrize("drafter", ["assistant", "prompt_lookup"])
def test_commit_is_identical_whatever_its_sparse_passes_decide(evaluate: Evaluate, drafter: str) -> None:
    report = evaluate([STORY], [CommitVerify(TIGHT, 6), CommitVerify(TIGHT)], drafter, reference="plain")
    for summary in report.summaries():
        assert_identical(summary)
        assert summary.kl is not None and summary.kl.mean > 0.01 and summary.disagreements > 0
    assert not any("LOSSY" in note for note in report.notes())
    assert any(note.startswith("commit: these decisions are the sparse passes'") for note in report.notes())


def test_acceptance_threshold_is_lossy_though_its_decisions_are_dense(evaluate: Evaluate) -> None:
    drafting = {"num_assistant_tokens": 4, "acceptance_threshold": 0.01}
    report = evaluate(TEXTS, ["dense"], "assistant", drafting=drafting)
    (summary,) = report.summaries()
    assert_same_decisions(summary)
    assert summary.identical < summary.prompts
    assert "dense: LOSSY, acceptance_threshold=0.01" in report.notes()[0]
    # The reference keeps to the exact rule.
    assert not report.reference_metrics.why_lossy


def test_without_drafts_generation_and_forced_decisions_part_at_the_same_token(evaluate: Evaluate) -> None:
    settings = [SparseVerify(budget=budget) for budget in (64, 128)]
    report = evaluate([STORY[:1200]], settings, max_new_tokens=20)
    parted = 0
    for result in report.results:
        for outcome in result.outcomes:
            differing = [i for i, decision in enumerate(outcome.decisions, 1) if not decision.agrees]
            # Up to there both have run the same passes over the same tokens, one row each.
            assert outcome.first_divergence == (differing[0] if differing else None)
            if differing:
                parted += 1
                assert outcome.divergence_margin == outcome.decisions[differing[0] - 1].margin
    assert parted


def test_forced_passes_read_what_a_draft_of_their_length_reads(evaluate: Evaluate) -> None:
    def decisions(num_assistant_tokens: int) -> list[Decision]:
        drafting = {"num_assistant_tokens": num_assistant_tokens}
        # Both lengths stay within one block, so that there is as much context to choose from.
        settings = [SparseVerify(budget=128)]
        report = evaluate(
            [STORY], settings, "prompt_lookup", drafting=drafting, reference="plain", context=545
        )
        assert report.num_assistant_tokens == num_assistant_tokens
        return report.results[0].outcomes[0].decisions

    short, long = decisions(1), decisions(8)
    # A pass selects by its first row, so rows further on differ; dense decoding does not.
    assert short[0].kl == pytest.approx(long[0].kl, rel=1e-3)
    assert [d.kl for d in short] != pytest.approx([d.kl for d in long], rel=1e-3)
    assert [d.margin for d in short] == pytest.approx([d.margin for d in long], abs=1e-3)


def test_sweep_of_coverage(evaluate: Evaluate) -> None:
    settings = [SparseVerify(coverage=coverage) for coverage in (0.5, 0.9, 1.0)]
    report = evaluate([STORY], settings)
    little, much, everything = report.summaries()
    assert little.attention_density < much.attention_density < everything.attention_density == 1.0
    assert little.kl is not None and much.kl is not None and little.kl.mean > much.kl.mean > 0.0
    assert_identical(everything)
    assert_same_decisions(everything)


def test_picture_of_settings_that_do_not_diverge(evaluate: Evaluate, tmp_path: Path) -> None:
    report = evaluate([PROMPTS[0]], ["dense"], max_new_tokens=4)
    assert report.summaries()[0].kl == KL(0.0, 0.0, 0.0, 0.0)
    plot_fidelity(report, tmp_path / "report.svg")
    drawing = (tmp_path / "report.svg").read_text(encoding="utf-8")
    assert "<svg" in drawing and list(tmp_path.iterdir()) == [tmp_path / "report.svg"]


def test_context_keeps_the_end_of_a_prompt(evaluate: Evaluate) -> None:
    report = evaluate(TEXTS, ["dense"], context=100)
    lengths = [reference.num_input_tokens for reference in report.references]
    assert lengths[0] == 100 and lengths[1] < 100
    assert "cut to their last 100" in report.lines()[1]


def test_a_token_or_two(evaluate: Evaluate) -> None:
    report = evaluate([STORY], [TIGHT], "assistant", max_new_tokens=2)
    assert report.summaries()[0].positions == 1
    assert len(report.references[0].tokens) == 2


def test_prompt_without_room_is_named_by_its_line(evaluate: Evaluate) -> None:
    with pytest.raises(ValueError, match=r"the prompt in line 2 has .* the model 8192 positions; cut"):
        evaluate([STORY, "Lily saw a bird. " * 2500], ["dense"])


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ({"low_margin": -0.1}, "low_margin=-0.1: expected"),
        ({"low_margin": float("nan")}, "low_margin=nan: expected"),
    ],
)
def test_numbers_out_of_range(evaluate: Evaluate, option: dict[str, float], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        evaluate(TEXTS, ["dense"], **option)


@pytest.mark.slow
def test_sparse_prompts_are_compared_with_dense_ones(evaluate: Evaluate) -> None:
    """Both generate and the forced decisions; a prompt that is read whole changes nothing."""
    long = [STORY * 2]
    tight = evaluate(long, ["dense"], prefill=SparsePrefill(L0=128, rho=0.0)).as_json()["settings"][0]
    assert not tight["lossless"] and "sparse prefill" in tight["why_lossy"]
    assert 0 < tight["prefill_density"] < 0.6 and tight["attention_density"] == 1.0
    assert tight["kl"]["mean"] > 1e-3
    whole = evaluate(long, ["dense"], prefill=SparsePrefill(L0=8192)).as_json()["settings"][0]
    assert whole["lossless"] and whole["identical"] == 1 and whole["prefill_density"] == 1.0
    assert whole["kl"]["max"] == 0.0
