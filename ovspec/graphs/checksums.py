"""Checksums of whole files, each taken once: a file whose signature is known is not read again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from ovspec_models.folder.files import replace_file

# By signature, of all files that this process has asked for.
_TAKEN: dict[tuple[int, ...], str] = {}
_BUFFER_BYTES = 1 << 20


def signature(path: Path) -> tuple[int, ...]:
    """Place, size and times of a file: writing to it, or another file under its name, gives another one.

    The time of the last change is in it, which no program can set, unlike that of the last writing.
    """
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    key = signature(path)  # before reading: what is written meanwhile shows in the next signature
    if key not in _TAKEN:
        digest, buffer = hashlib.sha256(), memoryview(bytearray(_BUFFER_BYTES))
        with path.open("rb", buffering=0) as file:
            while size := file.readinto(buffer):
                digest.update(buffer[:size])
        _TAKEN[key] = digest.hexdigest()
    return _TAKEN[key]


def remember(record: Path) -> None:
    """Take over the checksums that an earlier process has kept; a record that can't be read has none."""
    try:
        kept = json.loads(record.read_text(encoding="utf-8"))
        _TAKEN.update({tuple(map(int, key)): str(value) for key, value in kept})
    except (OSError, ValueError, TypeError, OverflowError, RecursionError):
        return


def keep(record: Path, paths: Sequence[Path]) -> None:
    """Keep the checksums of files for later processes, unless the record has them.

    Raises:
        OSError: it can't be written.
    """
    entries = [[signature(path), checksum(path)] for path in paths]
    text = json.dumps(entries).encode()
    if not record.exists() or record.read_bytes() != text:
        replace_file(record, text)
