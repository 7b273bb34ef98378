"""What steps cost, learned while they run: by context, sequences, rows and sparse budget."""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ovspec.schedule.schedule import StepOutcome

# Samples per size: enough for a median that a hiccup does not move, few enough to forget.
_MEMORY = 24
_OFTEN = 8
_ANCHORED = 3
# Contexts this far apart have costs of their own; between and beyond them costs are linear in context.
_BUCKET_RATIO = 1.25
_SHORTEST_CONTEXT = 256
# Steps over which the present pace of the machine is taken.
_PACE_STEPS = 7
# What one more row is taken to cost while only one number of rows was ever seen, as a share.
_UNSEEN_ROW = 0.02
# A draft that had to read more than this first says what reading costs, not what drafting costs.
_READ_TOKENS = 4

Array = NDArray[np.float64]


class CostCurve:
    """Cost by size, where a larger size costs no less until it was measured often.

    Args:
        from_zero: whether size 0 costs nothing by nature, as drafting no tokens does.
    """

    def __init__(self, from_zero: bool = False) -> None:
        self._from_zero = from_zero
        self._samples: dict[int, deque[float]] = {}
        self._fit = np.zeros(0), np.zeros(0)
        self._usual: dict[int, float] = {}
        self._stale = True

    def add(self, size: int, cost: float) -> None:
        """Take a measured cost."""
        if size not in self._samples:
            self._samples[size] = deque(maxlen=_MEMORY)
        self._samples[size].append(cost)
        self._stale = True

    def seed(self, other: CostCurve, scales: dict[int, float]) -> None:
        """Start from another curve, each size times its scale; what is measured soon outvotes it."""
        for size, samples in other._samples.items():
            for _ in range(2):
                self.add(size, _robust(samples) * scales.get(size, 1.0))

    @property
    def sizes(self) -> list[int]:
        """Sizes with a cost of their own, ascending."""
        return sorted(self._samples)

    def is_known(self, size: int) -> bool:
        """Whether a size was measured often enough to tell the pace of the machine by it."""
        return len(self._samples.get(size, ())) >= _ANCHORED

    def at(self, size: int) -> float:
        """Cost of one size as of the last prediction; 0.0 when no size is known."""
        usual = self._usual.get(size)
        return float(self.predict(np.array([size]))[0]) if usual is None else usual

    def predict(self, sizes: NDArray[np.int64]) -> Array:
        """Cost of every size, f64 `[sizes]`: medians made monotone, linear between and beyond them."""
        if not self._samples:
            return np.zeros(len(sizes))
        if self._stale:
            self._fit = self._fitted()
            self._usual = dict(zip(*(values.tolist() for values in self._fit), strict=True))
            self._stale = False
        known, costs = self._fit
        result: Array = np.interp(sizes, known, costs)
        # Beyond what was measured: no steeper than where the curve ends, nor than rows usually are.
        slope = _UNSEEN_ROW * costs[-1]
        if len(known) > 2:
            slope = min(slope, (costs[-1] - costs[-2]) / (known[-1] - known[-2]))
        result += slope * np.maximum(sizes - known[-1], 0)
        return result

    def _fitted(self) -> tuple[Array, Array]:
        sizes = self.sizes
        costs = [_robust(self._samples[size]) for size in sizes]
        weights = [float(len(self._samples[size])) for size in sizes]
        if self._from_zero and sizes[0] > 0:
            sizes, costs, weights = [0, *sizes], [0.0, *costs], [float(_MEMORY), *weights]
        # What was measured often is believed even where a larger size costs less.
        often = np.array(weights) >= _OFTEN
        return np.array(sizes, np.float64), np.where(often, costs, isotonic(costs, weights))


def isotonic(values: list[float], weights: list[float]) -> Array:
    """The closest ascending values, by pool adjacent violators; f64 `[values]`."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        pool = (value, weight, 1)
        while pools and pools[-1][0] > pool[0]:
            mean, mass, length = pools.pop()
            total = mass + pool[1]
            pool = ((mean * mass + pool[0] * pool[1]) / total, total, length + pool[2])
        pools.append(pool)
    return np.repeat([pool[0] for pool in pools], [pool[2] for pool in pools])


@dataclass(slots=True)
class CostCell:
    """Costs at about one context and one number of sequences, in microseconds at the usual pace.

    Attributes:
        context: mean tokens of a sequence where it was opened.
        verify: by budget scale, by tokens drafted in all sequences together; plain decoding is size 0.
        draft: a drafting round, by tokens drafted.
        host: all else of a step, by tokens drafted.
        commit: a dense pass over provisional tokens, by their number.
        switch: what a step costs more when the number of drafted tokens, and so all shapes, has changed.
        steps: how many steps were measured here, by draft tokens asked for and budget scale.
    """

    context: float
    verify: dict[float, CostCurve] = field(default_factory=dict)
    draft: CostCurve = field(default_factory=lambda: CostCurve(from_zero=True))
    host: CostCurve = field(default_factory=CostCurve)
    commit: CostCurve = field(default_factory=CostCurve)
    switch: float = 0.0
    steps: Counter[tuple[int, float]] = field(default_factory=Counter)

    def steps_of(self, scale: float, sizes: NDArray[np.int64]) -> Array:
        """Cost of a step by the tokens that it drafts in all sequences together, f64 `[sizes]`."""
        return self.verify_at(scale).predict(sizes) + self.host.predict(sizes) + self.draft.predict(sizes)

    def verify_at(self, scale: float) -> CostCurve:
        """The curve of a budget scale; while it is unknown, that of the nearest that is known."""
        if scale in self.verify or not self.verify:
            return self.verify.setdefault(scale, CostCurve())
        return self.verify[min(self.verify, key=lambda known: _distance(known, scale))]


class CostModel:
    """What was measured in every cell, and the pace of the machine.

    Durations are divided by the present pace, the median of what the last steps took over what they were
    expected to take. So a machine that slows down does not make the choice of this moment look bad; what
    counts are the ratios between choices, each measured among steps of the other.
    """

    def __init__(self) -> None:
        self._cells: dict[tuple[int, int], CostCell] = {}
        self._residuals: deque[float] = deque(maxlen=_PACE_STEPS)
        self._read: deque[float] = deque(maxlen=_MEMORY)
        self._switches: deque[float] = deque(maxlen=_MEMORY)
        self._last_shape: tuple[int, int] | None = None
        self._warm: set[tuple[int, int]] = set()
        self._pace = 1.0
        self._last_cell: tuple[tuple[int, ...], CostCell] | None = None

    @property
    def pace(self) -> float:
        """How much longer steps take at present than they were known to."""
        return self._pace

    @property
    def read_cost(self) -> float:
        """Microseconds per token that a drafter has to catch up with; 0.0 while unknown."""
        return median(self._read) if self._read else 0.0

    def cell(self, contexts: tuple[int, ...]) -> CostCell:
        """The cell of a batch; a new one starts from its neighbours."""
        if self._last_cell and self._last_cell[0] is contexts:
            return self._last_cell[1]
        number, context = len(contexts), sum(contexts) / len(contexts)
        key = (number, _bucket(context))
        if key not in self._cells:
            self._cells[key] = self._opened(number, context)
        self._last_cell = contexts, self._cells[key]
        return self._cells[key]

    def begin(self) -> None:
        """Another call begins: its first step has passes of other shapes before it."""
        self._last_shape = None

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from a step."""
        cell, drafted = self.cell(outcome.contexts), sum(outcome.proposed)
        scale = 1.0 if outcome.plan.budget_scale is None else outcome.plan.budget_scale
        shape = len(outcome.contexts), drafted
        switched, self._last_shape = shape != self._last_shape, shape
        # The first pass of a shape makes its kernels: by that alone one would never come back to it.
        is_cold = shape not in self._warm and any(curve.sizes for curve in cell.verify.values())
        self._warm.add(shape)
        pace = self.pace
        if outcome.commit_rows:
            cell.commit.add(outcome.commit_rows, outcome.commit_duration / pace)
            self._last_shape = None
        if is_cold:
            return
        cell.steps[outcome.plan.num_assistant_tokens, scale] += 1
        if scale not in cell.verify:
            cell.verify[scale] = CostCurve()
        verify = cell.verify[scale]
        if switched and verify.is_known(drafted):
            self._switches.append(max(0.0, outcome.verify_duration / pace - verify.at(drafted)))
            cell.switch = median(self._switches)
            return
        if not switched and verify.is_known(drafted):
            self._residuals.append(outcome.verify_duration / verify.at(drafted))
            self._pace = median(self._residuals)
        # A size of which little is known is not left to steady steps: lookups may never have two alike.
        extra = cell.switch if switched else 0.0
        verify.add(drafted, max(outcome.verify_duration / pace - extra, 0.0))
        cell.host.add(drafted, outcome.host_duration / pace)
        if outcome.plan.num_assistant_tokens > 0:
            self._observe_draft(cell, outcome, drafted, pace)

    def _observe_draft(self, cell: CostCell, outcome: StepOutcome, drafted: int, pace: float) -> None:
        if outcome.caught_up <= _READ_TOKENS:
            cell.draft.add(drafted, outcome.draft_duration / pace)
        else:
            reading = outcome.draft_duration / pace - cell.draft.at(drafted)
            self._read.append(max(reading, 0.0) / outcome.caught_up)

    def _opened(self, number: int, context: float) -> CostCell:
        cell = CostCell(context, switch=median(self._switches) if self._switches else 0.0)
        if not self._cells:
            return cell
        _, found = min(
            self._cells.items(),
            key=lambda item: (abs(item[0][0] - number), _distance(item[1].context, context)),
        )
        same = [other for (size, _), other in self._cells.items() if size == number and other is not found]
        second = min(same, key=lambda other: _distance(other.context, context), default=None)
        for scale, curve in found.verify.items():
            other = second.verify.get(scale) if second else None
            scales = _scales(curve, found.context, other, second.context if second else 0.0, context)
            cell.verify.setdefault(scale, CostCurve()).seed(curve, scales)
        cell.draft.seed(found.draft, {})
        cell.host.seed(found.host, {})
        cell.commit.seed(found.commit, {})
        return cell


def _bucket(context: float) -> int:
    return int(math.log(max(context, _SHORTEST_CONTEXT) / _SHORTEST_CONTEXT, _BUCKET_RATIO))


def _distance(one: float, other: float) -> float:
    """How far two positive numbers are apart as a ratio, where one may be infinite."""
    if one == other:
        return 0.0
    return abs(math.log(one) - math.log(other))


def _robust(values: deque[float]) -> float:
    """The median; of few the lower one, as the first passes of a shape compile its kernels."""
    return sorted(values)[(len(values) - 1) // 2] if len(values) < _OFTEN else median(values)


def _scales(
    near: CostCurve, near_context: float, far: CostCurve | None, far_context: float, context: float
) -> dict[int, float]:
    """By size, what the line through two contexts says of a third, over the nearer one's cost."""
    scales: dict[int, float] = {}
    if far is None or near_context == far_context:
        return scales
    for size in set(near.sizes) & set(far.sizes):
        cost = near.at(size)
        slope = max(0.0, (cost - far.at(size)) / (near_context - far_context))
        moved = cost + slope * (context - near_context)
        scales[size] = moved / cost if moved > 0.0 else 1.0
    return scales
