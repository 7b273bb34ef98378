"""The tables of measurements: each has its command on its page, and docs/figures.py can write it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from commands import ovspec
from docs.pages import PAGES, ROOT, figures, scaled
from tiers import by_tier

pytestmark = pytest.mark.usefixtures("measured_once")


def test_every_marked_table_has_a_figure() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert sorted(re.findall(r"<!-- measured: (\w+) -->", text)) == sorted(figures.FIGURES)


@pytest.mark.parametrize("name", figures.FIGURES)
def test_the_page_shows_the_command(name: str) -> None:
    figure = figures.FIGURES[name]
    page = (ROOT / "docs" / figure.page).read_text(encoding="utf-8")
    before, _, behind = page.partition(f"<!-- measured: {name} -->")
    assert f"```sh\n{figure.command}\n```" in before
    assert "<!-- end -->" in behind


def in_this_process(arguments: list[str], folder: str) -> None:
    run = ovspec(*arguments, cwd=folder)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("name", by_tier(figures.FIGURES, ("decode",)))
def test_a_figure_can_be_measured(name: str, tmp_path: Path) -> None:
    figure = figures.FIGURES[name]
    arguments = tuple(
        argument.replace(str(figures.IMAGE), str(tmp_path / "a.svg")) for argument in figure.arguments
    )
    smaller = replace(figure, command=scaled(figure.command), arguments=arguments)
    lines = list(smaller.table(figures.measure(smaller, in_this_process)))
    assert len(lines) > 2 and len({line.count("|") for line in lines}) == 1
    assert (tmp_path / "a.svg").exists() == ("--plot" in arguments)
