"""What a new user of the command line tripped over."""

from __future__ import annotations

import io
import json
import re
import resource
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from commands import one_line, ovspec
from rich.table import Table

from ovspec.cli import cli
from ovspec.cli.export import step_display
from ovspec.cli.generate import read_prompt
from ovspec.cli.options.output import print_table, save_text
from ovspec_models import demo_pair_path
from ovspec_models.export.export import _install_command

GENERATE = ("generate", "-m", demo_pair_path(), "-p", "Once upon a time", "--max-new-tokens", "40")


def test_a_seed_out_of_range_is_refused_by_name_and_range() -> None:
    line = one_line(ovspec(*GENERATE, "--do-sample", "--seed", "-1"))
    assert "--seed" in line and "-1 is not in the range x>=0" in line


def report(*options: str) -> dict[str, object]:
    run = ovspec(*GENERATE, "--json", *options)
    assert run.returncode == 0, run.stderr
    found: dict[str, object] = json.loads(run.stdout)
    return found


@pytest.mark.slow
def test_modes_are_json_and_one_that_read_everything_is_not_called_lossy() -> None:
    whole = report("--verify", "sparse", "--l0", "1024", "--rho", "0.1")
    mode = whole["verify"]
    assert isinstance(mode, dict) and mode["mode"] == "sparse" and (mode["L0"], mode["rho"]) == (1024, 0.1)
    assert whole["lossless"] is True and mode["rule"] == "mass"
    assert "all was read, exact" in ovspec(*GENERATE, "--verify", "sparse").stderr
    commit = report("--verify", "commit", "--commit-interval", "8")
    mode = commit["verify"]
    assert isinstance(mode, dict) and mode["mode"] == "commit" and mode["interval"] == 8


def test_one_token_has_no_speed_and_a_limit_of_the_users_is_not_the_models() -> None:
    words = ("generate", "-m", demo_pair_path(), "-p", "Once upon a time")
    run = ovspec(*words, "--max-new-tokens", "1")
    assert re.search(r"^\[1 token, first token \d+ ms\]$", run.stderr, re.MULTILINE), run.stderr
    line = one_line(ovspec(*words, "--max-context", "3"))
    assert "the model 3 positions (max_context or the size of the cache sets fewer than it has)" in line


@pytest.mark.slow
def test_penalties_are_options() -> None:
    found = report("--drafter", "none")
    assert found["verify"] == "dense"
    plain = found["text"]
    for option in ("--presence-penalty", "--frequency-penalty", "--repetition-penalty"):
        assert report("--drafter", "none", option, "1.9")["text"] != plain, option


@pytest.mark.parametrize("no_wrap", [False, True])
def test_a_narrow_terminal_cuts_nothing_off(monkeypatch: pytest.MonkeyPatch, no_wrap: bool) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    table = Table()
    names = [f"backend{number}/GB_per_second" for number in range(9)]
    cells = [f"{number} [-0.1, 0.1]" for number in range(6)] if no_wrap else []
    for name in cells or names:
        table.add_column("" if no_wrap else name, no_wrap=no_wrap)
    table.add_row(*(cells or map(str, range(9))))
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "80")
    print_table(table)
    assert all(text in screen.getvalue() for text in cells or names)


def test_figures_are_printed_where_the_disk_is_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    text = "x" * 5000
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match=rf"{tmp_path}/report.json can't be written \(File too large\)"):
            save_text(text, tmp_path / "report.json")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert capsys.readouterr().out == text + "\n" and list(tmp_path.iterdir()) == []


def test_a_pipe_gets_a_line_a_step() -> None:
    @click.command()
    def two_steps() -> None:
        with step_display() as progress:
            progress("copying the model")
            progress("writing the manifest")

    outcome = CliRunner().invoke(two_steps)
    assert outcome.stderr == "ovspec: copying the model\novspec: writing the manifest\n"


def test_the_export_says_what_to_install_from_an_index_that_has_it() -> None:
    command = _install_command()
    assert command.startswith('pip install "optimum-intel') and '"nncf' in command and "ovspec" not in command
    card = (Path(demo_pair_path()) / "README.md").read_text(encoding="utf-8")
    assert "pip install ovspec" not in card and "pip install ./ovspec-" in card
    outcome = CliRunner().invoke(cli, ["export", "--help"])
    assert "pip install" not in outcome.output


def test_a_byte_order_mark_is_no_part_of_a_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Editors on Windows write one; it changed the answer."""
    path = tmp_path / "prompt.txt"
    path.write_text("Once upon a time", encoding="utf-8-sig")
    assert read_prompt(None, path) == "Once upon a time"
    with path.open(encoding="utf-8") as file:
        monkeypatch.setattr("sys.stdin", file)
        assert read_prompt(None, None) == "Once upon a time"
