"""A pytest plugin: the reports of workers that crash stand at the end of a run's output, which CI shows.

A worker's own output is lost among that of others. A report also needs a stack for signals that is there, as
does Ctrl-C: OpenVINO's CPU plugin sets one for the thread that makes a core, and leaves a freed one behind if
the older of two cores goes first (2026.4). So every test begins with Python's own.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import shutil
import sys
from io import TextIOWrapper
from pathlib import Path

import pytest


class _SignalStack(ctypes.Structure):
    """`stack_t`."""

    _fields_ = (("ss_sp", ctypes.c_void_p), ("ss_flags", ctypes.c_int), ("ss_size", ctypes.c_size_t))

    @classmethod
    def now(cls) -> _SignalStack:
        """That of this thread."""
        stack = cls()
        ctypes.CDLL(None).sigaltstack(None, ctypes.byref(stack))
        return stack

    def set(self) -> None:
        """Let this thread's signals have it."""
        ctypes.CDLL(None).sigaltstack(ctypes.byref(self), None)


# A report's file stays open.
_REPORT, _STACK = pytest.StashKey[TextIOWrapper](), pytest.StashKey[_SignalStack]()


def _folder(config: pytest.Config) -> Path:
    return config.rootpath / "build" / "crashes"


@pytest.hookimpl(trylast=True)  # pytest's own would take the reports back
def pytest_configure(config: pytest.Config) -> None:
    """Let a worker write its report to a file; the controller removes those of earlier runs."""
    folder = _folder(config)
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        folder.mkdir(parents=True, exist_ok=True)
        config.stash[_REPORT] = (folder / f"{worker}.txt").open("w", encoding="utf-8")
        faulthandler.enable(config.stash[_REPORT])
    else:
        shutil.rmtree(folder, ignore_errors=True)
    if sys.platform == "linux":
        config.stash[_STACK] = _SignalStack.now()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give signals Python's own stack again."""
    if stack := item.config.stash.get(_STACK, None):
        stack.set()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Show the reports."""
    for file in sorted(_folder(config).glob("*.txt")):
        if text := file.read_text(encoding="utf-8"):
            terminalreporter.section(f"{file.stem} crashed")
            terminalreporter.write(text)
