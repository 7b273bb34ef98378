"""Why a library failed: the innermost reason of an exception, and what the user can install."""

from __future__ import annotations

import re
from importlib import metadata

# The libraries try names one after the other; that one was not there is no reason.
_TRIED = (KeyError, AttributeError, IndexError, StopIteration)
_DEEPEST = 100  # exceptions can name each other in a circle
_CAP = re.compile(r"version of Transformers.*\b(Max|Min)imum required is (\d[\w.]*\w)")


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's text, with the next one where it ends in a colon.

    It is the exception's type where it has no text, and begins with it where the text is a key alone.
    """
    if isinstance(error, KeyError):
        return f"{type(error).__name__} {error}"
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1]).rstrip(".;: ")


def reason(error: BaseException) -> str:
    """An exception's text, with that of the innermost one that led to it where the text does not say it."""
    said, inner = first_line(error), cause(error)
    return said if inner is None or inner in said else f"{said}; cause: {inner}"


def cause(error: BaseException) -> str | None:
    """The text of the innermost exception that led to this one; `None` where there is none."""
    inner = _innermost(error)
    return None if inner is error else first_line(inner)


def packages_to_install(error: BaseException) -> str | None:
    """What to install where packages do not fit each other; `None` where the exception says nothing of it."""
    text = reason(error)
    if "torchvision" in text:
        return (
            f"torchvision does not fit torch {_version('torch')}: install the one that was made for it, or "
            "remove it: `pip uninstall torchvision`"
        )
    if found := _CAP.search(text):
        limit = f"<={found[2]}" if found[1] == "Max" else f">={found[2]}"
        return (
            f"transformers {_version('transformers')} does not go with this optimum-intel and model: "
            f'`pip install "transformers{limit}"`'
        )
    return None


def _innermost(error: BaseException) -> BaseException:
    for _ in range(_DEEPEST):
        inner = error.__cause__
        if inner is None and not error.__suppress_context__ and not isinstance(error.__context__, _TRIED):
            inner = error.__context__
        if inner is None:
            break
        error = inner
    return error


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"
