"""Traces of offers and their replay: what is recorded is true, and the schedule reads it well."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from commands import one_line, ovspec

from ovspec.bench.offers import AnswerOffers, Offer, OfferTrace
from ovspec.bench.replay import CostTable, Policy, replay
from ovspec.bench.schedule import ScheduleBench, ScheduleReport
from ovspec.cli import cli
from ovspec_models import demo_pair_path

POLICIES = ("plain", "suffix:2", "suffix:4", "suffix:8")


def answer(seed: int, long_matches: float) -> AnswerOffers:
    """A text in which short matches deceive and long ones hold, for stretches of their own."""
    rng, offers = np.random.default_rng(seed), list[Offer]()
    while len(offers) < 128:
        good = rng.random() < long_matches
        for place in range(12):
            match = 8 + place if good else int(rng.integers(1, 3))
            accepted = 12 - place if good else int(rng.random() < 0.15)
            offers.append(Offer(match, 16, accepted))
    return AnswerOffers("text", 200, {"suffix": offers[:128]})


@pytest.mark.parametrize("row", [0.01, 0.1, 0.4])
@pytest.mark.parametrize("long_matches", [0.0, 0.4])
def test_auto_chooses_by_match(row: float, long_matches: float) -> None:
    """Whatever a row costs, it is near the best fixed length in hindsight, which differs, or above it."""
    trace = OfferTrace("made", [answer(seed, long_matches) for seed in range(12)])
    rows = [1, 2, 64]
    costs = CostTable([0, 4096], rows, 2 * [[5.0 * (1 + row * (count - 1)) for count in rows]])
    fixed = [replay(trace, costs, Policy(name))["text"] for name in POLICIES]
    assert replay(trace, costs, Policy("auto"))["text"] > 0.95 * max(fixed)


def test_a_trace_is_recorded_and_replayed(tmp_path: Path) -> None:
    prompts, path = tmp_path / "prompts.jsonl", tmp_path / "trace.json"
    texts = {"song": 2 * "One, two, three, jump! One, two, three, sing! ", "story": "The dog ran to the"}
    lines = [json.dumps({"prompt": text, "kind": kind}) for kind, text in texts.items()]
    prompts.write_text("\n".join(lines), encoding="utf-8")
    model = ["-m", str(demo_pair_path())]
    options = ["--prompts", str(prompts), "--category", "kind", "--max-new-tokens", "24", "-o", str(path)]
    run = CliRunner().invoke(
        cli, ["bench", "trace", *model, *options, "--offers", "--drafter", "auto"], catch_exceptions=False
    )
    assert run.exit_code == 0
    trace = OfferTrace.load(path)
    assert [found.category for found in trace.answers] == ["song", "story"]
    song = trace.answers[0].offers
    assert set(song) == {"assistant", "prompt_lookup", "suffix"}
    for offers in song.values():
        assert len(offers) == trace.answers[0].positions
    assert any(offer.accepted for offers in song.values() for offer in offers)
    again = tmp_path / "again.json"
    trace.save(again)
    assert OfferTrace.load(again).answers == trace.answers
    run = CliRunner().invoke(
        cli,
        ["bench", "schedule", *model, "--trace", str(path), "--policy", "plain,suffix:2,auto", "--json", "-"],
        catch_exceptions=False,
    )
    found = json.loads(run.stdout)
    assert list(found["tokens_per_s"]) == ["plain", "suffix:2", "auto"]
    assert all(min(costs) > 0 for costs in found["costs"]["ms"]) and found["costs"]["draft_ms"] > 0


def test_what_is_no_trace_or_policy_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('{"schema_version": 1}', encoding="utf-8")
    with pytest.raises(ValueError, match=r"is no trace of offers .*bench trace --offers"):
        OfferTrace.load(path)
    for found in ([], [{"category": "a", "prompt_tokens": 5, "offers": {"suffix": []}}]):
        path.write_text(json.dumps({"schema_version": 1, "source": "x", "answers": found}), encoding="utf-8")
        with pytest.raises(ValueError, match="is no trace of offers"):
            OfferTrace.load(path)
    trace = OfferTrace("made", [answer(0, 0.5)])
    with pytest.raises(ValueError, match="--policy plain,plain: expected each once"):
        ScheduleBench(demo_pair_path(), None, trace, 2 * (Policy("plain"),))
    for name in ("sufix", "suffix:0", "assistant", "suffix:", "suffix:49", "plain:4"):
        with pytest.raises(ValueError, match=r"--policy .*expected some of auto, plain, suffix"):
            Policy(name).check(trace)


def test_without_a_fixed_policy_there_is_no_share() -> None:
    report = ScheduleReport("made", CostTable([1], [1], [[1.0]]), {"auto": {"text": 10.0}})
    assert [list(column.cells) for column in report.table().columns] == [["auto"], ["10.0"], ["-"], ["-"]]


def test_answers_of_one_token_leave_nothing_to_record(tmp_path: Path) -> None:
    prompts, path = tmp_path / "prompts.jsonl", tmp_path / "trace.json"
    prompts.write_text('"The end."', encoding="utf-8")  # which the demo model ends at once
    arguments = ("--prompts", prompts, "--offers", "-o", path)
    run = ovspec("bench", "trace", "-m", demo_pair_path(), *arguments)
    assert "every answer to these prompts has one token" in one_line(run) and not path.exists()
