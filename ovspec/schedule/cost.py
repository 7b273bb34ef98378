"""Cost per number of rows: what steps take, by context and sequences, sparse or dense.

TurboSpec (arXiv 2406.14066) models the time of a pass by its number of tokens. Here medians of measured steps
take the place of its linear model: one more row costs now nothing, now a third of a pass.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import accumulate
from statistics import median, median_low

from ovspec.schedule.schedule import StepOutcome

# Samples of a size that are kept, and from which on its cost is known.
_MEMORY, _KNOWN = 16, 3
# What a row costs that was never measured, as a share of a pass.
_UNSEEN_ROW = 0.05


class CostCurve:
    """Cost by size: medians that never fall with the size, linear between them.

    Args:
        other: the curve it starts from; what is measured soon outvotes what was known there.
    """

    def __init__(self, other: CostCurve | None = None) -> None:
        self._samples, self._medians = dict[int, list[float]](), dict[int, float]()
        self._points: tuple[list[int], list[float]] = [], []
        for size, cost in other._medians.items() if other else ():
            self._take(size, [cost] * _KNOWN)

    def add(self, size: int, cost: float) -> None:
        """Take a measured cost."""
        if size not in self._samples:
            # One sample alone is not believed to be far off: a size that seems too dear is never tried again.
            cost = min(cost, 2.0 * self.at(size) or cost)
        self._take(size, [*self._samples.get(size, ()), cost][-_MEMORY:])

    def _take(self, size: int, samples: list[float]) -> None:
        self._samples[size], self._medians[size] = samples, median_low(samples)
        sizes = sorted(self._medians)
        lowest = accumulate((self._medians[known] for known in reversed(sizes)), min)
        self._points = sizes, list(lowest)[::-1]

    @property
    def largest(self) -> int:
        """The largest size that was measured, -1 without any."""
        return max(self._samples, default=-1)

    def is_known(self, size: int) -> bool:
        """Whether a size was measured often enough."""
        return len(self._samples.get(size, ())) >= _KNOWN

    def at(self, size: float) -> float:
        """Cost of a size; 0.0 where none is known."""
        sizes, costs = self._points
        if not sizes:
            return 0.0
        near = min(max(size, sizes[0]), sizes[-1])
        right = bisect_left(sizes, near)
        cost = costs[right]
        if near < sizes[right]:
            share = (sizes[right] - near) / (sizes[right] - sizes[right - 1])
            cost -= share * (cost - costs[right - 1])
        row = (costs[-1] - costs[0]) / (sizes[-1] - sizes[0]) if len(sizes) > 1 else _UNSEEN_ROW * costs[0]
        return max(cost + row * (size - near), cost / 2)


class CostCell:
    """Costs at about one context and one number of sequences, in microseconds.

    Args:
        other: the cell it starts from.

    Attributes:
        verify: verification and host, by tokens verified in all sequences together.
        dense: the same of the dense passes of a mode that commits.
        draft: a drafting round of a model, by tokens drafted.
    """

    def __init__(self, other: CostCell | None = None) -> None:
        self.verify: CostCurve = CostCurve(other.verify if other else None)
        self.dense: CostCurve = CostCurve(other.dense if other else None)
        self.draft: CostCurve = CostCurve(other.draft if other else None)
        self.draft.add(0, 0.0)

    def curve(self, interval: int | None) -> CostCurve:
        """The curve of a plan's commit interval; while it is unknown, the other one."""
        own, other = (self.dense, self.verify) if interval == 0 else (self.verify, self.dense)
        return other if own.largest < 0 else own


class CostModel:
    """Costs of every cell.

    Attributes:
        read_cost: microseconds per token that a drafter has to catch up with; 0.0 while unknown.
    """

    def __init__(self) -> None:
        self._cells, self._warm = dict[tuple[int, int], CostCell](), set[tuple[int, int]]()
        self.read_cost, self._read = 0.0, deque[float](maxlen=_MEMORY)

    def cell(self, contexts: tuple[int, ...]) -> CostCell:
        """The cell of a batch; contexts up to twice as long share it, a new one starts from the nearest."""
        number = len(contexts)
        key = number, (sum(contexts) // number).bit_length()
        if key not in self._cells:
            near = min(self._cells, key=lambda at: (abs(at[0] - number), abs(at[1] - key[1])), default=None)
            self._cells[key] = CostCell(self._cells[near] if near else None)
        return self._cells[key]

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from a step."""
        sequences, commits = outcome.sequences, [one.commit for one in outcome.sequences if one.commit]
        cell, number = self.cell(tuple(one.context for one in sequences)), len(sequences)
        rows = sum(one.proposed for one in sequences) + sum(count for count, _ in commits)
        curve = cell.dense if outcome.plan.commit_interval == 0 or len(commits) == number else cell.verify
        reads = outcome.caught_up > outcome.model_tokens + number
        if reads:
            self._read.append(outcome.draft_duration / outcome.caught_up)
            self.read_cost = median(self._read)
        # The first pass of a shape compiles kernels. By its time the shape would never be tried again.
        if (number, rows) in self._warm or curve.largest < 0 or commits:
            if curve is cell.dense or not commits:  # a pass that commits some of them is of neither curve
                curve.add(rows, outcome.duration)
            if outcome.model_tokens and not reads:
                cell.draft.add(outcome.model_tokens, outcome.draft_duration)
        self._warm.add((number, rows))
