"""A value that is computed in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

Made = TypeVar("Made")


@dataclass(slots=True)
class Beside(Generic[Made]):
    """Runs `make` in another thread: `begin` starts it, `result` waits for it.

    Args:
        make: computes the value.
    """

    make: Callable[[], Made]
    _made: Future[Made] | None = None

    def begin(self) -> None:
        """Start the thread, if it has not been."""
        if self._made is None:
            pool = ThreadPoolExecutor(1, "ovspec-beside")
            self._made = pool.submit(self.make)
            pool.shutdown(wait=False)

    def result(self) -> Made:
        """Wait for it; what `make` raises is raised here."""
        self.begin()
        assert self._made is not None
        return self._made.result()
