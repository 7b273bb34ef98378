"""Ctrl-C while a command runs."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click

from ovspec.cli.options.failures import INTERRUPTED


class Interrupts:
    """Remembers a Ctrl-C, and hides the message that Python prints where it can't raise it.

    Libraries turn a KeyboardInterrupt that reaches them in a callback into an error of their own, and Python
    prints one that comes in a destructor. Both end the command as Ctrl-C does.

    Attributes:
        seen: whether Ctrl-C was pressed.
    """

    def __init__(self) -> None:
        self.seen = False
        self._handler: Any = None
        self._unraisable = sys.unraisablehook

    def __enter__(self) -> Interrupts:
        # A shell starts background jobs with SIGINT ignored; keep it ignored.
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            self._handler = signal.signal(signal.SIGINT, self._interrupt)
        sys.unraisablehook = self._quiet
        return self

    def __exit__(self, *error: object) -> None:
        sys.unraisablehook = self._unraisable
        if self._handler is not None and signal.getsignal(signal.SIGINT) == self._interrupt:
            signal.signal(signal.SIGINT, self._handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        raise KeyboardInterrupt

    def _quiet(self, unraisable: Any) -> None:
        if not isinstance(unraisable.exc_value, KeyboardInterrupt):
            self._unraisable(unraisable)


@contextmanager
def ending_the_answer() -> Iterator[Callable[[], bool]]:
    """Make the first Ctrl-C in the block end an answer and not the program; yields whether it came.

    Whoever makes the answer asks between two steps of it. The second one ends the program. Nothing changes
    outside the command line.
    """
    before, pressed = signal.getsignal(signal.SIGINT), False
    if not isinstance(getattr(before, "__self__", None), Interrupts):
        yield lambda: False
        return

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            assert callable(before)
            before(number, frame)
        pressed = True

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def ending_at_once(remove: Callable[[], None]) -> Iterator[None]:
    """Make Ctrl-C call `remove` and end the process there, while libraries of the export run.

    torch aborts the process at a KeyboardInterrupt in some of its callbacks (SIGABRT), and others swallow it:
    the export then goes on to its end. Nothing changes outside the command line.
    """
    before = signal.getsignal(signal.SIGINT)
    if not isinstance(getattr(before, "__self__", None), Interrupts):
        yield
        return

    process = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            # A terminal sends the signal to processes that a library forked as well.
            if os.getpid() == process:
                remove()
                if sys.stderr.isatty():
                    click.echo("\x1b[?25h", err=True)  # the cursor that a spinner hides
        finally:
            os._exit(INTERRUPTED)

    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
