"""What is made in a thread of its own, beside something else."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

Made = TypeVar("Made")


@dataclass(slots=True)
class Beside(Generic[Made]):
    """Makes something in another thread, once that may begin.

    Args:
        make: makes it.
    """

    make: Callable[[], Made]
    _made: Future[Made] | None = None

    def begin(self) -> None:
        """Begin to make it, if that has not begun."""
        if self._made is None:
            pool = ThreadPoolExecutor(1, "ovspec-beside")
            self._made = pool.submit(self.make)
            pool.shutdown(wait=False)

    def result(self) -> Made:
        """Wait for it; what `make` raises is raised here."""
        self.begin()
        assert self._made is not None
        return self._made.result()
