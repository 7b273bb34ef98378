"""What a GGUF file says of itself: its metadata and the names, sizes and types of its tensors."""

from __future__ import annotations

import math
import mmap
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ovspec_models.folder.shown import cut, shown

MAGIC = b"GGUF"
_AGAIN = "get it again"
_SPLIT = re.compile(r"-\d{5}-of-(?!00000)(\d{5})\.gguf$")
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9
# Type of a tensor by its number: its name, and values and bytes of a block.
_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    39: ("MXFP4", 32, 17),
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of the file: its name, sizes with the rows' own last, and the name of its type."""

    name: str
    shape: tuple[int, ...]
    type: str


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A GGUF file, or the first of the parts that one was split into.

    Attributes:
        parts: all files, in their order.
        metadata: numbers, texts and lists by name.
        tensors: of all parts.
    """

    path: Path
    parts: tuple[Path, ...]
    metadata: dict[str, Any]
    tensors: tuple[GgufTensor, ...]

    @classmethod
    def read(cls, path: Path) -> GgufFile:
        """Read what stands before the weights of a file and of its other parts.

        Raises:
            ValueError: it is no GGUF file, damaged, cut short, or one of its parts is missing; in one line
                that names the file.
        """
        parts = parts_of(path)
        read = [_read(part) for part in parts]
        return cls(path, parts, read[0][0], tuple(tensor for _, tensors in read for tensor in tensors))


def is_gguf(path: Path) -> bool:
    """Whether a file begins as GGUF files do, or is named like one."""
    if not path.is_file():
        return False
    with path.open("rb") as opened:
        return opened.read(len(MAGIC)) == MAGIC or path.suffix == ".gguf"


def part_names(name: str) -> list[str]:
    """The names of all parts of a split GGUF file, in order, by the name of one; of a whole file, its own."""
    found = _SPLIT.search(name)
    if found is None:
        return [name]
    count = int(found[1])
    return [f"{name[: found.start()]}-{part + 1:05d}-of-{count:05d}.gguf" for part in range(count)]


def parts_of(path: Path) -> tuple[Path, ...]:
    """All parts of a split GGUF file, by its first one; of a whole file, itself.

    Raises:
        ValueError: `path` is another part, or one is missing.
    """
    parts = tuple(path.with_name(name) for name in part_names(path.name))
    if path not in parts[:1]:
        raise ValueError(f"'{path}' is one of {len(parts)} parts of a GGUF file: give '{parts[0]}'")
    missing = next((part for part in parts if not part.is_file()), None)
    if missing is not None and len(parts) > 1:
        raise ValueError(
            f"'{path}' is the first of {len(parts)} parts of a GGUF file, and '{missing}' is missing"
        )
    return parts


def _read(path: Path) -> tuple[dict[str, Any], list[GgufTensor]]:
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ValueError(f"'{path}' is no GGUF file: it does not begin with {MAGIC.decode()}; {_AGAIN}")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                return _Reader(content).head()
            except (struct.error, UnicodeDecodeError) as error:
                raise ValueError(f"'{path}' is damaged or cut short ({error}); {_AGAIN}") from error
            except _DamagedError as error:
                raise ValueError(f"'{path}' is damaged or cut short: {error}; {_AGAIN}") from None


class _DamagedError(Exception):
    """What is wrong with a file."""


class _Reader:
    """Reads values one behind the other; every length is held against the bytes that are there."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content, self._at = content, len(MAGIC)

    def head(self) -> tuple[dict[str, Any], list[GgufTensor]]:
        version = self._number("I")
        if version not in (2, 3):
            raise _DamagedError(f"it has version {version}, expected 2 or 3")
        tensors, pairs = self._count(24), self._count(13)
        metadata = {self._text(): self._value(self._number("I")) for _ in range(pairs)}
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
            raise _DamagedError(f"general.alignment is {shown(alignment)}")
        found = [self._tensor() for _ in range(tensors)]
        begin = -(-self._at // alignment) * alignment
        for tensor, offset, size in found:
            if begin + offset + size > len(self._content):
                raise _DamagedError(f"the weights of {cut(tensor.name)} end behind its last byte")
        return metadata, [tensor for tensor, _, _ in found]

    def _number(self, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self._content, self._at)
        self._at += struct.calcsize(f"<{form}")
        return value

    def _count(self, least: int) -> int:
        """A number of things that take `least` bytes each at least."""
        count: int = self._number("Q")
        if count * least > len(self._content) - self._at:
            raise _DamagedError(f"{count} entries at byte {self._at - 8} do not fit in it")
        return count

    def _text(self) -> str:
        size = self._count(1)
        text = self._content[self._at : self._at + size].decode()
        self._at += size
        return text

    def _value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind != _ARRAY:
            raise _DamagedError(f"a value of type {kind} at byte {self._at}")
        inner = self._number("I")
        if inner == _TEXT:
            return [self._text() for _ in range(self._count(8))]
        if inner not in _NUMBERS:
            raise _DamagedError(f"a list of type {inner} at byte {self._at}")
        form = _NUMBERS[inner]
        count = self._count(struct.calcsize(f"<{form}"))
        values = struct.unpack_from(f"<{count}{form}", self._content, self._at)
        self._at += struct.calcsize(f"<{count}{form}")
        return list(values)

    def _tensor(self) -> tuple[GgufTensor, int, int]:
        """A tensor, the byte of the weights where it begins, and how many it has."""
        name, dims = self._text(), self._number("I")
        if not 1 <= dims <= 4:
            raise _DamagedError(f"{cut(name)} has {dims} dimensions")
        shape = tuple(self._number("Q") for _ in range(dims))[::-1]
        kind, offset = self._number("I"), self._number("Q")
        label, block, size = _TYPES.get(kind, (f"of number {kind}", 1, 0))
        if shape[-1] % block:
            kind_of = "super-block" if block == 256 else "block"
            expected = f"{label}'s {kind_of} size {block}"
            raise _DamagedError(f"{cut(name)} has rows of {shape[-1]} values, no multiple of {expected}")
        return GgufTensor(name, shape, label), offset, math.prod(shape) // block * size
