"""Loaded by Schemathesis: valid bodies keep few fields, as many of them exclude each other."""

from __future__ import annotations

from typing import Any

import schemathesis
from schemathesis import GenerationMode

_NEEDED = ("prompt", "messages", "tokens")
_MOST_OTHERS = 2


@schemathesis.hook
def map_case(context: Any, case: Any) -> Any:
    """Without the name of another model, and with few fields."""
    if isinstance(case.body, dict) and case.meta.generation.mode == GenerationMode.POSITIVE:
        others = sorted(set(case.body) - {"model", *_NEEDED})
        chosen = others[len(str(case.body)) % (len(others) + 1) :][:_MOST_OTHERS]
        case.body = {name: value for name, value in case.body.items() if name in (*_NEEDED, *chosen)}
    return case
