"""The scheduler: which requests a pass advances, and how much of which prompt it reads."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from ovspec.cache.block_manager import BlockManager
from ovspec.engine.requests.request_state import RequestState
from ovspec.engine.verify.speculation import Chunk
from ovspec.runner.warm_up import MOST_SAMPLED

# While others decode, a pass with a part of a prompt may take so many times what one without takes.
_MOST_SLOWDOWN = 2.0
# Rows of prompts that a pass reads however slow it becomes.
_LEAST_ROWS = 8
# Passes with rows of prompts after which one only decodes: what the rows add is measured against it.
_MEASURE_EVERY = 32
# Weight of the last measurement.
_RATE = 0.3


class CacheFullError(RuntimeError):
    """The oldest request alone does not fit in the cache."""

    def __init__(self, request_id: str) -> None:
        super().__init__(request_id)
        self.request_id = request_id


class PassCosts:
    """What passes take that only decode, and what a row of a prompt adds to them."""

    def __init__(self) -> None:
        self._decoding = 0.0
        self._row = 0.0
        self._since = 0

    def observe(self, duration: float, read: int) -> None:
        """A pass that decoded took so long, with so many rows of prompts in it."""
        self._since = self._since + 1 if read else 0
        if not read:
            self._decoding = duration if not self._decoding else _blend(self._decoding, duration)
        elif self._decoding:
            row = max(0.0, duration - self._decoding) / read
            self._row = row if not self._row else _blend(self._row, row)

    @property
    def is_due(self) -> bool:
        """Whether a pass should only decode, so that what rows of prompts add is known."""
        return not self._decoding or self._since >= _MEASURE_EVERY

    def reading(self, duration: float, read: int) -> float:
        """The part of a pass of such a duration that went into rows of prompts."""
        return min(read * self._row, 0.9 * duration) if self._row else 0.5 * duration * bool(read)

    def rows(self, most: int, decoding: int, unread: int) -> int:
        """Rows of prompts for a pass that decodes as well.

        Args:
            most: the most of them.
            decoding: requests that decode.
            unread: requests that have not been read; where these are more, they weigh more.
        """
        weight = max(1.0, unread / decoding)
        rows = (_MOST_SLOWDOWN - 1.0) * self._decoding / self._row if self._row else 0.0
        return min(most, int(weight * max(_LEAST_ROWS, rows)))


def _blend(old: float, new: float) -> float:
    return (1.0 - _RATE) * old + _RATE * new


class Scheduler:
    """Requests that wait and requests that run, in the order in which they came.

    Args:
        blocks: of the target's cache.
        max_num_batched_tokens: rows of a pass, so many sequences run at a time at most. What drafts may take
            is left to them; where that is more, a pass has their rows and a few of prompts. A whole piece of
            a prompt is read even if others decode beside it.
        max_num_seqs: requests that run at a time.
        prompt_piece: tokens of a prompt that one pass reads all or none.
    """

    def __init__(
        self, blocks: BlockManager, max_num_batched_tokens: int, max_num_seqs: int, prompt_piece: int = 1
    ) -> None:
        self._blocks = blocks
        self._prompt_piece = prompt_piece
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_num_seqs = max_num_seqs
        self.waiting: deque[RequestState] = deque()
        self.running: list[RequestState] = []
        self.costs = PassCosts()
        self.num_preemptions = 0

    def admit(self) -> list[RequestState]:
        """Let requests run that wait, as far as there is room for their prompts; these requests."""
        admitted, passed_over = [], []
        left = self.max_num_batched_tokens - sum(state.width for state in self.running)
        while self.waiting and len(self.running) < self.max_num_seqs and self.waiting[0].width <= left:
            state = self.waiting.popleft()
            if self._is_being_read(state):
                passed_over.append(state)
            elif self.running and not self._fits(state):
                self.waiting.appendleft(state)
                break
            else:
                self.running.append(state)
                admitted.append(state)
                left -= state.width
        self.waiting.extendleft(reversed(passed_over))
        return admitted

    def schedule(self) -> tuple[list[RequestState], list[Chunk]]:
        """Requests that decode in the next pass, and the chunks of prompts beside them.

        Where the cache is full the youngest requests are preempted; they wait, and are read again.
        """
        decoding = [state for state in self.running if state.unread == 0]
        if len(decoding) == len(self.running) == 1 and not self.waiting and self._blocks.spare is None:
            return decoding, []  # the common case, in which a pass of a small model waits for this
        left = self.max_num_batched_tokens
        if decoding:
            unread = len(self.running) - len(decoding) + len(self.waiting)
            # Something must advance: in a full cache only the oldest surely does.
            decodes = self._blocks.spare is None or decoding[0] is self.running[0]
            due = decodes and self.costs.is_due
            behind_drafts = left - sum(state.most_rows for state in decoding)
            left = min(left - sum(state.width for state in decoding), max(_LEAST_ROWS, behind_drafts))
            left = 0 if due else self.costs.rows(left, len(decoding), unread)
        chunks: list[Chunk] = []
        promised, advancing = 0, list[RequestState]()
        for state in list(self.running):
            rows = self._whole(state, self._rows(state, left, bool(chunks))) if state.unread else 1
            if not rows or state not in self.running:
                continue
            while (missing := self._missing(state, rows)) > self._room(promised):
                behind = self.running[self.running.index(state) + 1 :]
                own = [other for other in behind if other.request.cached is None]
                if not own:
                    break
                self.preempt(own[-1])
            if missing > self._room(promised):
                continue
            promised += missing
            advancing.append(state)
            if state.unread:
                chunks.append(Chunk(state, rows))
                left = max(0, left - rows)
        if self.running and not advancing:
            raise CacheFullError(self.running[0].request.request_id)
        return [state for state in decoding if state in advancing], chunks

    def _rows(self, state: RequestState, most: int, others: bool) -> int:
        """Unread tokens that a pass reads; a whole piece of a prompt at least, where no other is read."""
        if state.wants_prompt_logprobs:
            most = min(most, MOST_SAMPLED)  # each of its rows has logits
        begin, end, piece = state.sequence.target.length, state.sequence.prompt_length, self._prompt_piece
        if begin >= end or piece == 1 or not most:
            return min(state.unread, most)
        if end - begin <= most:
            return end - begin
        whole = (begin + most) // piece * piece - begin
        return whole if whole > 0 else 0 if others else min(end - begin, piece - begin % piece)

    def _whole(self, state: RequestState, rows: int) -> int:
        """So many rows, or those that cut no picture whose rows see each other."""
        target = state.sequence.target
        if not rows or target.visual is None:
            return rows
        return target.visual.whole(target.length, target.length + rows) - target.length

    def draft_room(self, decoding: Sequence[RequestState], chunks: Sequence[Chunk]) -> int | None:
        """Draft tokens that each request has room for beside the chunks of a pass; `None`: any number."""
        if (spare := self._blocks.spare) is None:
            return None
        spare -= sum(self._missing(state, 1) for state in decoding)
        spare -= sum(self._missing(chunk.state, chunk.tokens) for chunk in chunks)
        return max(0, spare) // max(1, len(decoding)) * self._blocks.block_size

    def preempt(self, state: RequestState) -> None:
        """Take a request's blocks; it waits before all others."""
        self.running.remove(state)
        self.waiting.appendleft(state)
        self._blocks.release(state.sequence.target)
        if state.beams is not None:
            state.beams.begin_again()
        self.num_preemptions += 1

    def remove(self, state: RequestState) -> None:
        """Forget a request that has ended."""
        if state in self.running:
            self.running.remove(state)
        else:
            self.waiting.remove(state)

    def _missing(self, state: RequestState, rows: int) -> int:
        if state.unread:
            target = state.sequence.target
            return self._blocks.lacking([(target, target.length + rows)])
        return self._blocks.lacking([(one.target, len(one.tokens)) for one in state.sequences])

    def _room(self, promised: int) -> float:
        spare = self._blocks.spare
        return math.inf if spare is None else spare - promised

    def _fits(self, state: RequestState) -> bool:
        """Whether all that a request has to read fits, beside what others have still to read."""
        promised = sum(self._missing(other, max(1, other.unread)) for other in self.running)
        return self._missing(state, state.unread) + 1 <= self._room(promised)

    def _is_being_read(self, state: RequestState) -> bool:
        """Whether another request reads what this one begins with: it waits, and shares it then."""
        if not self._blocks.max_cached or state.sequence.target.length:
            return False
        size = self._blocks.block_size
        mine = state.sequence.begins(size)
        return len(state.sequence.tokens) > size and any(
            other.unread > 0 and other.sequence.begins(size) == mine for other in self.running
        )
