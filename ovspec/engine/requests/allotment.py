"""Allotment: which request gets how many of the draft tokens that a schedule plans for a pass."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

# What is assumed of a request before its first drafts: tokens that were accepted, of so many tried.
_PRIOR_ACCEPTED, _PRIOR_TRIED = 1.2, 2.0
# What a draft weighs beside the next one.
_DECAY = 0.8
# The most that a request gets, in multiples of the plan.
_MOST = 3


class AcceptanceRate:
    """How often a draft token of one request is accepted where the one before it was."""

    def __init__(self) -> None:
        self._accepted, self._tried = _PRIOR_ACCEPTED, _PRIOR_TRIED

    @property
    def rate(self) -> float:
        """The share, over the last drafts."""
        return self._accepted / self._tried

    def observe(self, proposed: int, accepted: int) -> None:
        """A draft of so many tokens of which the first so many were accepted."""
        if proposed:
            self._accepted = _DECAY * self._accepted + accepted
            self._tried = _DECAY * self._tried + min(proposed, accepted + 1)


def allot(tokens: int, rates: Sequence[float], rooms: Sequence[int]) -> list[int]:
    """Draft tokens of each request, for a plan of `tokens` each: as many as that in all.

    Every row of a pass costs the same, so each goes to the request whose next draft token is most likely to
    be accepted, which the rate says to the power of its position. Every request keeps one, by which its rate
    is learned.

    Args:
        tokens: of each request by the plan.
        rates: acceptance of each.
        rooms: the most that each can use.
    """
    found = [min(1, tokens, max(0, room)) for room in rooms]
    left = tokens * len(rates) - sum(found)
    most = [min(_MOST * tokens, room) for room in rooms]
    heap = [(-rate * rate, index) for index, rate in enumerate(rates) if found[index] < most[index]]
    heapq.heapify(heap)
    while heap and left > 0:
        likely, index = heapq.heappop(heap)
        found[index] += 1
        left -= 1
        if found[index] < most[index]:
            heapq.heappush(heap, (likely * rates[index], index))
    return found
