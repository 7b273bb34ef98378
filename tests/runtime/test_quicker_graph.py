"""Which of several graphs of the same bits stays, by given times of their passes."""

from __future__ import annotations

from typing import Any, cast

import pytest

from ovspec.runtime.quicker_graph import QuickerGraph


class TimedGraph:
    """Its passes take as long as they are said to."""

    def __init__(self, *durations: float) -> None:
        self.request, self.durations = object(), None
        self._given = durations
        self.passes = 0

    def run(self) -> None:
        if self.durations is not None:
            cast("list[float]", self.durations).append(self._given[self.passes // 16 % len(self._given)])
        self.passes += 1


def used(graphs: list[TimedGraph], passes: int) -> tuple[list[int], list[object]]:
    """The graph of each pass, and what was dropped."""
    dropped: list[object] = []
    graph, order = QuickerGraph(cast("Any", graphs), dropped.append), []
    for _ in range(passes):
        one = cast("TimedGraph", graph.next())
        one.run()
        order.append(graphs.index(one))
    return order, dropped


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        pytest.param([100.0], [60.0], 1, id="the second is quicker"),
        pytest.param([100.0], [140.0], 0, id="the first is quicker"),
        pytest.param([100.0], [97.0], 0, id="threads have to pay"),
        pytest.param([100.0], [60.0, 900.0, 60.0], 1, id="load during one turn"),
    ],
)
def test_the_quicker_one_stays(first: list[float], second: list[float], kept: int) -> None:
    graphs = [TimedGraph(*first), TimedGraph(*second)]
    order, dropped = used(graphs, 200)
    assert order[:96] == ([0] * 16 + [1] * 16) * 3
    assert order[96:] == [kept] * 104
    assert dropped == [graphs[1 - kept].request]


def test_a_pass_that_is_not_timed_begins_the_turn_again() -> None:
    graphs = [TimedGraph(100.0), TimedGraph(60.0)]
    graph, order = QuickerGraph(cast("Any", graphs), lambda request: None), []
    for number in range(60):
        one = cast("TimedGraph", graph.next(timed=number != 10))
        one.run()
        order.append(graphs.index(one))
    assert order == [0] * 26 + [1] * 16 + [0] * 16 + [1] * 2


def test_one_graph_is_not_timed() -> None:
    graph = TimedGraph(1.0)
    assert used([graph], 40) == ([0] * 40, [])
    assert graph.durations is None
