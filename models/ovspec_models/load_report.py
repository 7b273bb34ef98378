"""What transformers says about weights that do not fit a configuration: it logs it, and goes on."""

from __future__ import annotations

import re
from collections.abc import Iterable

_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_ROW = re.compile(r"([\w.]+(?:\{[^}]*\}[\w.]*)*)\s*\|\s*(MISSING|MISMATCH|UNEXPECTED|CONVERSION)\b")
_MEANING = {
    "MISSING": "{} is not among the weights",
    "MISMATCH": "{} has another shape in the weights",
    "UNEXPECTED": "the weights hold {}, which the configuration has no place for",
    "CONVERSION": "{} can't be made from the weights",
}


def unfit_weights(messages: Iterable[str]) -> str | None:
    """Say what does not fit, after what was logged while a checkpoint was loaded; `None` if all does.

    For a weight that is missing transformers takes a random one, and it drops those that it has no place for.
    Of the latter only layers count: checkpoints may hold other things, such as buffers of an older version.
    """
    for message in messages:
        if "LOAD REPORT" not in message:
            continue
        for name, status in _ROW.findall(_STYLE.sub("", message)):
            if status != "UNEXPECTED" or re.search(r"\b(layers|h|blocks)\.\{?\d", name):
                return _MEANING[status].format(name)
    return None
