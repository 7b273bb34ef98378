"""What `openvino_model.xml` says of a model: its constants and runtime options, read without OpenVINO."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, field
from pathlib import Path

# As OpenVINO writes them. Parsing the whole file takes as long as reading the model.
# Bounds keep the time for a damaged file linear in its size.
_CONSTANT = re.compile(rb'type="Const"[^>]{0,4096}>\s{0,256}<data ([^>]{0,4096})>')
_ATTRIBUTE = re.compile(rb'\b(\w{1,64})="([^"]*)"')
_OPTION = re.compile(rb'<(\w{1,256}) value="([^"]*)"')
_ENCODING = re.compile(rb'^\s{0,256}<\?xml[^>]{0,256}encoding="([^"]*)"')
_DIGITS = 18
_END = b"</net>"
_STATE = re.compile(rb'variable_shape="([^"]*)"')


@dataclass(frozen=True, slots=True)
class IrConstant:
    """One constant: its element type as the XML names it, its shape, and its bytes in the .bin file."""

    element_type: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class IrFacts:
    """Facts of one IR file.

    Attributes:
        constants: those that have a shape, in the order of the file; several at one place of the .bin file
            are one.
        runtime_options: what the model asks a plugin for, e.g. {"KV_CACHE_PRECISION": "f16"}.
        fault: why the file is no whole IR; `None` for a good one.
    """

    constants: tuple[IrConstant, ...] = ()
    runtime_options: dict[str, str] = field(default_factory=dict)
    fault: str | None = None

    @classmethod
    def read(cls, xml: Path) -> IrFacts:
        """Read an IR file as far as it can be read; `fault` says what is wrong with it.

        Raises:
            OSError: the file can't be opened.
        """
        text = xml.read_bytes()
        constants, fault = _constants(text)
        found = _OPTION.findall(_between(text, b"<runtime_options>", b"</runtime_options>"))
        named = {name.decode(): value.decode(errors="replace") for name, value in found}
        return cls(constants, named, _fault(text) or fault)


def _between(text: bytes, begin: bytes, end: bytes) -> bytes:
    """What is between two marks; nothing without both."""
    _, found, rest = text.partition(begin)
    inside, closed, _ = rest.partition(end) if found else (b"", b"", b"")
    return inside if closed else b""


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS


def state_shapes(xml: Path) -> list[tuple[int, ...]]:
    """Shapes of the states that an IR file keeps between passes; -1 where a dimension is not fixed.

    Raises:
        OSError: the file can't be opened.
    """
    found = (match.decode(errors="replace").split(",") for match in _STATE.findall(xml.read_bytes()))
    return [tuple(int(dim) if _is_number(dim.strip()) else -1 for dim in dims) for dims in found]


def _fault(text: bytes) -> str | None:
    if not text.lstrip().startswith(b"<"):
        return "no XML"
    encoding = _ENCODING.match(text)
    if encoding:
        try:
            codecs.lookup(encoding[1].decode(errors="replace"))
        except LookupError as error:
            return str(error)
    return None if text.rstrip().endswith(_END) else f"cut short: it does not end with {_END.decode()}"


def _constants(text: bytes) -> tuple[tuple[IrConstant, ...], str | None]:
    """The constants, and what is wrong with the first bad one."""
    constants, seen, fault = [], set[str](), None
    for found in _CONSTANT.finditer(text):
        data = {name.decode(): value.decode(errors="replace") for name, value in _ATTRIBUTE.findall(found[1])}
        dims = [dim.strip() for dim in data.get("shape", "").split(",") if dim.strip()]
        if not all(map(_is_number, dims)):
            fault = fault or f"a constant of shape {data['shape']!r}"
            continue
        place = data.get("offset", "")
        if not dims or place in seen:
            continue
        if place:
            seen.add(place)
        size = data.get("size", "")
        shape = tuple(map(int, dims))
        constants.append(
            IrConstant(data.get("element_type", ""), shape, int(size) if _is_number(size) else 0)
        )
    return tuple(constants), fault
