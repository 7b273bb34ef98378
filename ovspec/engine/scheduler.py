"""The scheduler: which requests a pass advances, and how much of which prompt it reads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ovspec.engine.request_state import RequestState
from ovspec.engine.speculation import Chunk

# While others decode, a pass with a part of a prompt may take so many times what one without takes.
_MOST_SLOWDOWN = 2.0
# Rows of prompts that a pass reads however slow it becomes.
_LEAST_ROWS = 16
# Weight of the last measurement.
_RATE = 0.3


class PassCosts:
    """What passes take that only decode, and what a row of a prompt adds to them."""

    def __init__(self) -> None:
        self._decoding = 0.0
        self._row = 0.0

    def observe(self, duration: float, read: int) -> None:
        """A pass that decoded took so long, with so many rows of prompts in it."""
        if not read:
            self._decoding = duration if not self._decoding else _blend(self._decoding, duration)
        elif self._decoding:
            row = max(0.0, duration - self._decoding) / read
            self._row = row if not self._row else _blend(self._row, row)

    def rows(self, most: int) -> int:
        """Rows of prompts for a pass that decodes as well."""
        if not self._row:
            return min(most, _LEAST_ROWS)
        rows = int((_MOST_SLOWDOWN - 1.0) * self._decoding / self._row)
        return min(most, max(_LEAST_ROWS, rows))


def _blend(old: float, new: float) -> float:
    return (1.0 - _RATE) * old + _RATE * new


class Scheduler:
    """Requests that wait and requests that run, in the order in which they came.

    Args:
        max_num_batched_tokens: rows of prompts that a pass reads at most.
        max_num_seqs: requests that run at a time.
    """

    def __init__(self, max_num_batched_tokens: int, max_num_seqs: int) -> None:
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_num_seqs = max_num_seqs
        self.waiting: deque[RequestState] = deque()
        self.running: list[RequestState] = []
        self.costs = PassCosts()

    def __iter__(self) -> Iterable[RequestState]:
        yield from self.running
        yield from self.waiting

    def schedule(self) -> tuple[list[RequestState], list[Chunk]]:
        """Requests that decode in the next pass, and the chunks of prompts beside them."""
        while self.waiting and len(self.running) < self.max_num_seqs:
            self.running.append(self.waiting.popleft())
        decoding = [state for state in self.running if state.unread == 0]
        left = self.max_num_batched_tokens
        if decoding:
            left = self.costs.rows(left)
        chunks = []
        for state in self.running:
            if (unread := state.unread) and left:
                chunks.append(Chunk(state, min(unread, left)))
                left -= chunks[-1].tokens
        return decoding, chunks

    def remove(self, state: RequestState) -> None:
        """Forget a request that has ended."""
        if state in self.running:
            self.running.remove(state)
        else:
            self.waiting.remove(state)
