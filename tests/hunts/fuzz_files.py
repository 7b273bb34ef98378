"""Damaged and hostile files against the functions that read them."""

from __future__ import annotations

import base64
import functools
import json
import random
import re
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hunts.fuzz_hunt import Finding, Given, signature
from hunts.fuzz_readers import READERS, Files
from hunts.fuzz_values import NUMBERS, change, change_bytes, dumps, smaller_bytes, smaller_values

from ovspec.errors import raised_by_us

_MOST_BYTES = 2**18
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")


class ManyFiles:
    """The hunt."""

    slow = 1.0

    def __init__(self) -> None:
        root = "/dev/shm" if Path("/dev/shm").is_dir() else None  # so that no disk is worn
        self._root = tempfile.TemporaryDirectory(prefix="ovspec-hunt-", dir=root)
        self._names = [name for name, reader in READERS.items() for _ in range(reader.share)]
        self._folders: dict[str, Path] = {}
        for name, reader in READERS.items():  # imports of libraries are nobody's fault
            reader.read(self._folder(name))

    def make(self, chance: random.Random) -> Given:
        """A reader, and one of its files with changes."""
        name = chance.choice(self._names)
        changed = chance.choice(READERS[name].changed)
        data = change_file(changed, files_of(name)[changed], chance)
        return {"reader": name, "file": changed, "data": base64.b64encode(data).decode()}

    def attempt(self, given: Given) -> str:
        """Read the folder with that file."""
        name, path = given["reader"], self._folder(given["reader"]) / given["file"]
        path.write_bytes(base64.b64decode(given["data"]))
        try:
            READERS[name].read(self._folder(name))
        except (ValueError, OSError) as error:
            check_refusal(error)
            return "refused"
        finally:
            for file, data in files_of(name).items():
                (self._folder(name) / file).write_bytes(data)
        return "read"

    def smaller(self, given: Given) -> Iterator[Given]:
        """With a smaller file."""
        data = base64.b64decode(given["data"])
        try:
            candidates = [json.dumps(value).encode() for value in smaller_values(json.loads(data))]
        except (ValueError, RecursionError):
            candidates = smaller_bytes(data)
        for small in candidates:
            if len(small) < len(data):
                yield {**given, "data": base64.b64encode(small).decode()}

    def _folder(self, name: str) -> Path:
        """The folder of a reader, with its valid files."""
        if name not in self._folders:
            self._folders[name] = Path(self._root.name) / name
            for file, data in files_of(name).items():
                path = self._folders[name] / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        return self._folders[name]


@functools.cache
def files_of(name: str) -> Files:
    """The valid files of a reader."""
    return READERS[name].files()


def check_refusal(error: Exception) -> None:
    """An error of ours, in one line of a length that can be read; or one of the system about a file."""
    text, place = str(error), signature(error)
    if isinstance(error, ValueError) and not raised_by_us(error):
        raise Finding(f"{place}, not raised by ovspec: {text[:200]!r}") from error
    if "\n" in text or not text or len(text) > 2000:
        raise Finding(f"{place}, of more lines, too long or empty: {text[:200]!r}") from error


def change_file(name: str, data: bytes, chance: random.Random) -> bytes:
    """A file with changes that fit its kind, or with any; larger by so many bytes at most."""
    most = len(data) + _MOST_BYTES
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        kind = chance.random()
        if kind < 0.3:
            data = change_bytes(data, chance)
        elif kind < 0.31:
            data = chance.choice((b"", b"\n", b"null", b"[]", b"{}", b"\xef\xbb\xbf", chance.randbytes(50)))
        elif name.endswith(".json"):
            data = _changed_json(data, chance)
        elif name.endswith(".jsonl"):
            lines = data.split(b"\n")
            at = chance.randrange(len(lines))
            lines[at] = _changed_json(lines[at], chance)
            data = b"\n".join(lines)
        elif name.endswith(".safetensors"):
            data = _changed_tensors(data, chance)
        elif name.endswith(".xml"):
            data = _changed_number(data, chance)
        else:
            data = change_bytes(data, chance)
        data = data[:most]
    return data


def _changed_json(data: bytes, chance: random.Random) -> bytes:
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError):
        return change_bytes(data, chance)
    return dumps(change(value, chance), chance)


def _changed_tensors(data: bytes, chance: random.Random) -> bytes:
    """Another header of a safetensors file, with its length or another one."""
    size = struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else 0
    header, rest = data[8 : 8 + size], data[8 + size :]
    if not header or chance.random() < 0.3:
        return data[: 8 + size] + change_bytes(rest, chance)
    header = _changed_json(header, chance)
    length = (
        len(header)
        if chance.random() < 0.9
        else chance.choice((0, 1, max(0, len(header) - 1), 2**31, 2**63, 2**64 - 1))
    )
    return struct.pack("<Q", length) + header + rest


def _changed_number(data: bytes, chance: random.Random) -> bytes:
    """Another number in a text."""
    found = list(_NUMBER.finditer(data))
    if not found:
        return change_bytes(data, chance)
    place = chance.choice(found)
    return data[: place.start()] + str(chance.choice(NUMBERS)).encode() + data[place.end() :]
