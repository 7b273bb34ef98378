"""The command under test."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from ovspec.cli import main


@pytest.fixture(scope="session", autouse=True)
def _measured_once(measured_once: None) -> None:
    """All benchmarks here."""


@pytest.fixture
def bench_verify(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run `ovspec bench verify` in this process, as the installed command does; the exit code."""

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["ovspec", "bench", "verify", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return ended.value.code

    return run
