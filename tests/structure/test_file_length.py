"""Files stay short enough to be read in one go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("ovspec", "models", "transforms", "custom_ops", "tests", "tools", "docs")
SUFFIXES = (".py", ".cpp", ".hpp", ".cl")
MAX_LINES = 400


def _too_long(folders: list[Path]) -> Iterator[str]:
    for path in sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in SUFFIXES):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MAX_LINES:
            yield f"{path}: {lines} lines, at most {MAX_LINES}: move a part into a file of its own"


def test_no_source_file_is_too_long() -> None:
    assert not list(_too_long([ROOT / name for name in FOLDERS]))


def test_a_file_that_is_too_long_is_found(tmp_path: Path) -> None:
    (tmp_path / "just_right.py").write_text("\n" * MAX_LINES)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "long.hpp").write_text("\n" * (MAX_LINES + 1))
    assert [line.split(":")[0] for line in _too_long([tmp_path])] == [str(tmp_path / "deep" / "long.hpp")]
