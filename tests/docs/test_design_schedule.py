"""The schedule stays small: its tuned constants are those of docs/design-schedule.md, with their values."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "ovspec/schedule").glob("*.py"))
# Follows from another constant, or is no number.
UNTUNED = {"SCHEDULES"}


def constants(file: Path) -> dict[str, str]:
    """Upper-case names of a module, with their values as they are written."""
    found = {}
    for line in ast.parse(file.read_text()).body:
        if isinstance(line, ast.Assign):
            targets = [n.id for t in line.targets for n in ast.walk(t) if isinstance(n, ast.Name)]
            values = line.value.elts if len(targets) > 1 else [line.value]  # type: ignore[attr-defined]
            found |= {name: ast.unparse(v) for name, v in zip(targets, values, strict=True) if name.isupper()}
    return {name: value for name, value in found.items() if name not in UNTUNED}


def test_the_page_lists_every_tuned_constant() -> None:
    page = (ROOT / "docs/design-schedule.md").read_text().split("## Constants")[1].split("\n## ")[0]
    total = 0
    for file in FILES:
        row = re.search(rf"^\| `{file.name}` \| (.*) \|$", page, re.MULTILINE)
        listed = dict(re.findall(r"`(\w+)(?: = ([^`]+))?`", row[1] if row else ""))
        written = constants(file)
        assert listed.keys() == written.keys()
        # Values that are no number may be too long for the table; they are in the code only then.
        assert all(
            value == written[name] or (not value and not re.fullmatch(r"-?[\d.]+(e-?\d+)?", written[name]))
            for name, value in listed.items()
        )
        total += len(written)
    assert total <= 9


def test_the_schedule_is_at_most_551_lines() -> None:
    assert sum(len(file.read_text().splitlines()) for file in FILES) <= 551
