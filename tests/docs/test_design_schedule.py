"""The schedule stays small: its tuned constants are those of docs/design-schedule.md, with their values."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "ovspec/schedule").glob("*.py"))
# Follows from another constant, or is no number.
UNTUNED = {"_EVIDENCE", "SCHEDULES"}


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
    page = (ROOT / "docs/design-schedule.md").read_text().split("## Tuned constants")[1].split("\n## ")[0]
    total = 0
    for file in FILES:
        row = re.search(rf"^\| `{file.name}` \| (.*) \|$", page, re.MULTILINE)
        listed = re.findall(r"`(\w+)(?: = ([\d.]+))?`", row[1] if row else "")
        written = constants(file)
        # Values that are too long for the table are in the code only.
        assert dict(listed) == {n: v if re.fullmatch(r"[\d.]+", v) else "" for n, v in written.items()}
        total += len(written)
    assert total <= 19


def test_the_schedule_is_at_most_854_lines() -> None:
    assert sum(len(file.read_text().splitlines()) for file in FILES) <= 854
