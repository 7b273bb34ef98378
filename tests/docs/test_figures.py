"""The tables of measurements: each has its command on its page, and docs/figures.py can write it."""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from docs.pages import PAGES, ROOT, scaled

SPEC = importlib.util.spec_from_file_location("docs_figures", ROOT / "docs" / "figures.py")
assert SPEC is not None and SPEC.loader is not None
figures = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = figures  # dataclasses look their module up
SPEC.loader.exec_module(figures)


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


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_figure_can_be_measured(name: str, tmp_path: Path) -> None:
    figure = figures.FIGURES[name]
    arguments = tuple(
        argument.replace(str(figures.IMAGE), str(tmp_path / "a.svg")) for argument in figure.arguments
    )
    smaller = replace(figure, command=scaled(figure.command), arguments=arguments)
    lines = list(smaller.table(figures.measure(smaller)))
    assert len(lines) > 2 and len({line.count("|") for line in lines}) == 1
    assert (tmp_path / "a.svg").exists() == ("--plot" in arguments)
