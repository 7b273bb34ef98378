"""Acceptance traces: what they refuse, and that a traced model follows them."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from ovspec.bench.acceptance_trace import AcceptanceTrace, Confirmations


def test_synthetic_trace_accepts_the_same_every_time() -> None:
    trace = AcceptanceTrace.of("synthetic:3/4")
    assert list(islice(trace.drafts(), 3)) == [(4, 3, 4)] * 3
    assert trace.tokens_per_pass() == 4.0


def test_saved_trace_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    trace = AcceptanceTrace("the demo pair", [4, 2], [1, 2], [30])
    trace.save(path)
    found = AcceptanceTrace.of(str(path))
    assert (found.proposed, found.accepted, found.confirmed) == ([4, 2], [1, 2], [30])
    assert found.source == "trace.json: the demo pair"
    assert list(islice(found.drafts(), 3)) == [(4, 1, 4), (2, 2, 2), (4, 1, 4)]


def test_traces_of_trees(tmp_path: Path) -> None:
    trace = AcceptanceTrace.of("synthetic:3/5x16")
    assert next(trace.drafts()) == (5, 3, 16) and trace.tokens_per_pass() == 4.0
    trace.save(tmp_path / "tree.json")
    assert next(AcceptanceTrace.of(str(tmp_path / "tree.json")).drafts()) == (5, 3, 16)
    path = tmp_path / "before.json"
    path.write_text(json.dumps({"schema_version": 1, "proposed": [2], "accepted": [1], "confirmed": []}))
    assert next(AcceptanceTrace.of(str(path)).drafts()) == (2, 1, 2)
    with pytest.raises(ValueError, match="2 numbers of nodes for 1 drafts"):
        AcceptanceTrace("both", [2], [1], nodes=[2, 2])


def test_confirmations_are_played_across_commits_of_any_size() -> None:
    trace = AcceptanceTrace("", [4], [4], [5, 0, 3])
    played = Confirmations(trace)
    # 5 are confirmed before the first correction: 3 of 3, then 2 of 4. Then none, then 3, and so on.
    assert [played.take(n) for n in (3, 4, 2, 9, 5)] == [3, 2, 0, 3, 5]
    assert Confirmations(AcceptanceTrace("", [4], [4])).take(63) == 63


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("synthetic:5/4", "draft 0 has 4 proposed and 5 accepted"),
        ("synthetic:0/64", "draft 0 has 64 proposed"),
        ("synthetic:3", "expected synthetic:A/N"),
        ("synthetic:3/4x3", "draft 0 has 3 nodes and a path of 4"),
        ("synthetic:3/4x64", "expected a number from 4 to 63"),
        ("missing.json", "missing.json: No such file"),
    ],
)
def test_bad_name_is_refused(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        AcceptanceTrace.of(text)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("{", "is no JSON"),
        ("[]", "no trace of schema_version 1"),
        (json.dumps({"schema_version": 1, "proposed": [1], "accepted": "x", "confirmed": []}), "accepted is"),
        (json.dumps({"schema_version": 1, "proposed": [], "accepted": [], "confirmed": []}), "at least one"),
        (
            json.dumps({"schema_version": 1, "proposed": [2], "accepted": [1], "confirmed": [-1]}),
            "confirmed has -1",
        ),
    ],
)
def test_bad_file_is_refused(tmp_path: Path, body: str, expected: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(body)
    with pytest.raises(ValueError, match=expected):
        AcceptanceTrace.load(path)
