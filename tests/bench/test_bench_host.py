"""`ovspec bench host`: figures for every setting, and refusals."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from ovspec.bench.host import SETTINGS, HostBench
from ovspec.cli import cli


def test_every_setting_is_timed() -> None:
    arguments = [
        "bench",
        "host",
        "--vocab-size",
        "300",
        "--steps",
        "20",
        "--num-assistant-tokens",
        "3",
        "--json",
    ]
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    records = json.loads(result.output)["records"]
    assert [record["setting"] for record in records] == list(SETTINGS)
    for record in records:
        assert record["steps"] == 20
        assert 0 < record["median_ms"] <= record["p90_ms"]


def test_few_steps_have_no_figure_beyond_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostBench, "_durations", lambda *_: [1e3, 2e3])
    for record in HostBench(300, 3, 2).run():
        assert record.median_ms == 1.5 and record.p90_ms == pytest.approx(1.9)


@pytest.mark.parametrize(("name", "value"), [("vocab_size", 1), ("steps", 0)])
def test_bad_numbers_are_refused(name: str, value: int) -> None:
    arguments = {"vocab_size": 300, "num_assistant_tokens": 3, "steps": 20, name: value}
    with pytest.raises(ValueError, match=f"--{name.replace('_', '-')} {value}"):
        HostBench(**arguments)
