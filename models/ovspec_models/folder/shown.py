"""Values out of files, for messages of one line: they may be anybody's, and of any length."""

from __future__ import annotations

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
