"""Values out of files and requests, for messages of one line: they may be anybody's, and of any length."""

from __future__ import annotations

import json
import reprlib

_MOST = 80
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = _MOST
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = 20
_REPR.maxlevel = 3


def shown(value: object) -> str:
    """A value as Python writes it, cut where it is long or nested."""
    return cut(_REPR.repr(value))


def cut(text: str, most: int = _MOST) -> str:
    """A text as one line, cut where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def shown_name(part: int | str) -> str:
    """A name, or an index, as one line, cut where it is long, in quotes where it is blank at an end."""
    name = str(part)[:_MOST]
    shown = name if name.isprintable() else json.dumps(name)[1:-1]
    return shown if shown == shown.strip() != "" else f'"{shown}"'
