"""Imports run one way: between packages, between their rooms, and in no circle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest
from structure.rooms import Structure

MakeFaults: TypeAlias = Callable[[dict[str, str]], list[str]]


def test_imports_run_one_way() -> None:
    structure = Structure()
    print(f"\n{structure.summary()}")
    assert not list(structure.faults())


@pytest.fixture
def faults(tmp_path: Path) -> MakeFaults:
    """Faults of two packages, `high` with the rooms `a` over `b` and `low`, made of the given files."""

    def find(files: dict[str, str]) -> list[str]:
        floors = {name: tmp_path / name for name in ("high", "low")}
        rooms: dict[str, Sequence[tuple[str, ...]]] = {
            "high": (("",), ("a",), ("b",)),
            "low": (("",), ("x", "y")),
        }
        for folder in (*floors.values(), tmp_path / "tests"):
            folder.mkdir()
        (tmp_path / "tests" / "helper.py").touch()
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return list(Structure(floors, rooms, [tmp_path / "tests"]).faults())

    return find


def test_imports_that_run_down_are_accepted(faults: MakeFaults) -> None:
    assert not faults(
        {
            "high/__init__.py": "from high.a.one import f",
            "high/a/one.py": "import numpy\nfrom high.b import two\nfrom . import other",
            "high/a/other.py": "from ..b.two import g",
            "high/b/two.py": "import low.x",
            "low/x.py": "from low.y import h",
            "low/y.py": "",
        }
    )


@pytest.mark.parametrize(
    ("files", "message"),
    [
        pytest.param(
            {"low/x.py": "import high.a.one", "high/a/one.py": ""},
            "low.x imports high.a.one, which is above it",
            id="floor",
        ),
        pytest.param(
            {"high/b/two.py": "def f():\n    from high.a import one", "high/a/one.py": ""},
            "high.b.two imports high.a.one, which is above it",
            id="room, inside a function",
        ),
        pytest.param(
            {"high/b/two.py": "from ..a.one import f", "high/a/one.py": ""},
            "high.b.two imports high.a.one, which is above it",
            id="room, relative",
        ),
        pytest.param(
            {"high/a/one.py": "import high", "high/__init__.py": ""},
            "high.a.one imports high, which is above it",
            id="the package itself",
        ),
        pytest.param(
            {"low/x.py": "from low import y", "low/y.py": "from low import x"},
            "a circle of rooms: low.x, low.y",
            id="circle of rooms",
        ),
        pytest.param(
            {"high/a/one.py": "from . import two", "high/a/two.py": "import high.a.one"},
            "a circle of modules: high.a.one, high.a.two",
            id="circle of modules",
        ),
        pytest.param(
            {"high/a/one.py": "import tests.helper"},
            "high.a.one imports tests, which is not installed",
            id="tests",
        ),
        pytest.param(
            {"high/a/one.py": "import helper"},
            "high.a.one imports helper, which is not installed",
            id="helper",
        ),
        pytest.param(
            {"high/c/three.py": ""},
            "high.c has no place in the order: add it to ROOMS in tests/structure/rooms.py",
            id="unknown room",
        ),
        pytest.param(
            {f"high/a/m{i}.py": f"import high.a.m{i + 1}" if i < 6 else "" for i in range(7)},
            "high.a: a chain of 7 modules, 6 at most: " + " -> ".join(f"high.a.m{i}" for i in range(7)),
            id="deep room",
        ),
    ],
)
def test_bad_examples_are_found(faults: MakeFaults, files: dict[str, str], message: str) -> None:
    assert message in faults(files)
