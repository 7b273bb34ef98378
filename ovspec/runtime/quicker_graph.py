"""Graphs that give the same bits: the one whose passes take less time stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import openvino as ov

from ovspec.runtime.pass_inputs import PassInputs

# Of each graph: turns, and passes of a turn. Threads that fell asleep meanwhile wake in its first two.
_TURNS, _PASSES, _UNTIMED = 3, 16, 2
# A graph of more threads takes more processor time; it has to be quicker by more than chance.
_WORTH = 0.95


class QuickerGraph:
    """Lets graphs take turns in the passes of a text, and then keeps one.

    Timed are the passes themselves: what further threads bring depends on the model, on the processor, and on
    what else the machine does. A burst of other load disturbs one turn; the median of three stands.

    Args:
        graphs: one or more, the one with the fewest threads first.
        drop: called with the request of a graph that goes.
    """

    def __init__(self, graphs: Sequence[PassInputs], drop: Callable[[ov.InferRequest], None]) -> None:
        self._graphs, self._drop = list(graphs), drop
        self._turns: list[list[float]] = [[] for _ in graphs]
        self._now = 0
        if len(self._graphs) > 1:
            self._graphs[0].durations = []

    @property
    def requests(self) -> list[ov.InferRequest]:
        """Of the graphs that are left."""
        return [graph.request for graph in self._graphs]

    def next(self, timed: bool = True) -> PassInputs:
        """The graph that the next pass takes.

        Args:
            timed: `False` where something else slows the pass; the turn then begins again.
        """
        durations = self._graphs[self._now].durations
        if durations is not None and not timed:
            durations.clear()
        if durations is not None and len(durations) >= _PASSES:
            self._turns[self._now].append(median(durations[_UNTIMED:]))
            self._graphs[self._now].durations = None
            self._now = (self._now + 1) % len(self._graphs)
            if len(self._turns[self._now]) == _TURNS:
                self._decide()
            else:
                self._graphs[self._now].durations = []
        return self._graphs[self._now]

    def _decide(self) -> None:
        first, *others = (median(turns) for turns in self._turns)
        quickest = min(others)
        kept = 1 + others.index(quickest) if quickest < _WORTH * first else 0
        for index, graph in enumerate(self._graphs):
            if index != kept:
                self._drop(graph.request)
        self._graphs, self._now = [self._graphs[kept]], 0
