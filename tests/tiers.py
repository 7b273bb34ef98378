"""Which cases of a test `make test` runs, and which `make test-slow` does."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def by_tier(values: Iterable[Any], first: Container[Any]) -> list[Any]:
    """Values as parameters of a test, slow unless they are in `first`. A tuple is several parameters."""
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            marks=() if value in first else pytest.mark.slow,
        )
        for value in values
    ]
