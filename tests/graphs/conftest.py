"""Fixtures of models with a CACHE_DIR."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from graphs.kept_models import logits, start
from numpy.typing import NDArray


@pytest.fixture(scope="session")
def compiled(demo_ir: Path) -> NDArray[np.float32]:
    """Logits of the draft without a cache."""
    return logits(start(demo_ir / "draft", None))


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The messages since the last call."""

    def lines() -> list[str]:
        found = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        caplog.clear()
        return found

    return lines
