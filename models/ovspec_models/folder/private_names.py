"""Names of the export libraries that are not public, and whether an installed release still has them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from importlib import import_module


def misfit(module: str, names: Sequence[str], **parameters: Sequence[str]) -> str:
    """Why an installed library can't be patched; empty where it can.

    Args:
        module: where the names are.
        names: attributes that it must have, with dots for those of a class.
        parameters: per function, with `__` for the dots, parameters that it must take.
    """
    try:
        found = import_module(module)
    except ImportError as error:
        return f"{module} can't be imported ({error})"
    for name in names:
        thing: object = found
        for part in name.split("."):
            if not hasattr(thing, part):
                return f"{module} has no {name}"
            thing = getattr(thing, part)
        wanted = parameters.get(name.replace(".", "__"), ())
        missing = [word for word in wanted if word not in inspect.signature(thing).parameters]  # type: ignore[arg-type]
        if missing:
            return f"{name} of {module} takes no {missing[0]}"
    return ""
