"""The files that the maps of the code name exist, and the rooms are all on the map."""

from __future__ import annotations

import re

import pytest
from docs.pages import ROOT

CONCEPTS = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
ROOMS = (ROOT / "ovspec" / "README.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([^|]+) \| [^|]+ \| `([^`]+)` \| `([^`]+)` \|$", CONCEPTS, flags=re.MULTILINE)


def test_there_are_more_than_20_concepts() -> None:
    assert len({concept for concept, _, _ in ROWS}) == len(ROWS) > 20
    lines = re.findall(r"^\| (?!concept )", CONCEPTS, flags=re.MULTILINE)
    assert len(lines) == len(ROWS), "a row that the other test does not read"


@pytest.mark.parametrize(("concept", "file", "test"), ROWS)
def test_a_concept_has_a_file_and_a_test(concept: str, file: str, test: str) -> None:
    assert (ROOT / file).is_file() and (ROOT / test).is_file()
    assert test.startswith("tests/")


def test_every_path_of_the_map_of_the_code_exists() -> None:
    named = re.findall(r"`([\w./-]+)`", ROOMS)
    paths = [name for name in named if "/" in name or name.endswith((".py", ".md"))]
    places = (ROOT, ROOT / "ovspec", ROOT / "transforms" / "ovspec_transforms")
    assert len(paths) > 40
    # `op`, `kernel` and `reference.py` are names in every operation's folder.
    files = [path for path in paths if path not in ("reference.py", "README.md")]
    assert not [path for path in files if not any((place / path).exists() for place in places)]


def test_every_room_is_on_the_map() -> None:
    rooms = {path.parent.name for path in (ROOT / "ovspec").glob("*/__init__.py")}
    assert set(re.findall(r"^\| `(\w+)/` \|", ROOMS, flags=re.MULTILINE)) == rooms
