"""A file is read once as long as nothing touches it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from ovspec.graphs import checksums


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights.bin"
    path.write_bytes(os.urandom((2 << 20) + 17))
    return path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files that were opened."""
    opened: list[Path] = []
    usual = Path.open

    def noting(path: Path, *arguments: object, **named: object) -> object:
        opened.append(path)
        return usual(path, *arguments, **named)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", noting)
    return opened


def test_the_whole_file_counts(file: Path) -> None:
    assert checksums.checksum(file) == hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_later_process_does_not_read_it(file: Path, tmp_path: Path, reads: list[Path]) -> None:
    first = checksums.checksum(file)
    checksums.keep(tmp_path / "record", [file])
    checksums._TAKEN.clear()
    checksums.remember(tmp_path / "record")
    reads.clear()
    assert checksums.checksum(file) == first and file not in reads


@pytest.mark.parametrize("damage", ["{", "[1]", "[[1, 2]]", '[["a", "b"]]', ""])
def test_a_record_that_cannot_be_read_is_none(file: Path, tmp_path: Path, damage: str) -> None:
    first = checksums.checksum(file)
    checksums._TAKEN.clear()
    (tmp_path / "record").write_text(damage)
    checksums.remember(tmp_path / "record")
    assert checksums.checksum(file) == first


def test_whatever_touches_it_makes_it_be_read_again(file: Path, tmp_path: Path) -> None:
    first, stat = checksums.checksum(file), file.stat()
    with file.open("r+b") as opened:
        opened.write(b"other")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    second = checksums.checksum(file)
    other = tmp_path / "other"
    other.write_bytes(os.urandom(stat.st_size))
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    other.replace(file)
    assert len({first, second, checksums.checksum(file)}) == 3
