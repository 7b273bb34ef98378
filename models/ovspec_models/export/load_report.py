"""Find weights that do not fit the configuration in the log of transformers, which does not raise."""

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
    """Describe what does not fit, from the log of loading a checkpoint; `None` if everything fits.

    transformers replaces a missing weight by random numbers and drops weights that the model does not have.
    Of the dropped ones only those of layers count: checkpoints may contain others, such as buffers of an
    older version.
    """
    for message in messages:
        if "LOAD REPORT" not in message:
            continue
        for name, status in _ROW.findall(_STYLE.sub("", message)):
            if status != "UNEXPECTED" or re.search(r"\b(layers|h|blocks)\.\{?\d", name):
                return _MEANING[status].format(name)
    return None
