"""Cost per number of rows: what steps take, by context, sequences and sparse budget.

TurboSpec (arXiv 2406.14066) models the time of a pass by its number of tokens. Here medians of measured steps
take the place of its linear model: one more row costs now nothing, now a third of a pass.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ovspec.schedule.schedule import StepOutcome

# Samples after which a size is known, and after which its median is believed where a larger size costs less.
KNOWN = 3
OFTEN = 8
_MEMORY = 3 * OFTEN
# Steps over which the present pace of the machine is taken.
_PACE_STEPS = 7
# What one more row is taken to cost while only one number of rows was ever seen, as a share.
_UNSEEN_ROW = 0.02
# Contexts up to this cost alike.
_SHORTEST_CONTEXT = 256

Array = NDArray[np.float64]


class CostCurve:
    """Cost by size, where a larger size costs no less until it was measured often.

    Args:
        from_zero: whether size 0 costs nothing by nature, as drafting no tokens does.
    """

    def __init__(self, from_zero: bool = False) -> None:
        self._from_zero = from_zero
        self._samples: dict[int, deque[float]] = {}
        self._fit: tuple[Array, Array] | None = None
        self._usual: dict[int, float] = {}

    def add(self, size: int, cost: float) -> None:
        """Take a measured cost."""
        self._samples.setdefault(size, deque(maxlen=_MEMORY)).append(cost)
        self._fit = None

    def seed(self, other: CostCurve, scales: dict[int, float]) -> None:
        """Start from another curve, each size times its scale; what is measured soon outvotes it."""
        for size, samples in other._samples.items():
            for _ in range(KNOWN - 1):
                self.add(size, _robust(samples) * scales.get(size, 1.0))

    @property
    def sizes(self) -> list[int]:
        """Sizes with a cost of their own, ascending."""
        return sorted(self._samples)

    def is_known(self, size: int) -> bool:
        """Whether a size was measured often enough to tell the pace of the machine by it."""
        return len(self._samples.get(size, ())) >= KNOWN

    def at(self, size: int) -> float:
        """Cost of one size as of the last prediction; 0.0 when no size is known."""
        usual = self._usual.get(size)
        return float(self.predict(np.array([size]))[0]) if usual is None else usual

    def predict(self, sizes: NDArray[np.int64]) -> Array:
        """Cost of every size, f64 `[sizes]`: medians made monotone, linear between and beyond them."""
        if not self._samples:
            return np.zeros(len(sizes))
        if self._fit is None:
            self._fit = self._fitted()
            self._usual = dict(zip(*(values.tolist() for values in self._fit), strict=True))
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
        often = np.array(weights) >= OFTEN
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
        switches: samples of `switch`; all cells share them.
        verify: verification and host, by budget scale and by tokens drafted in all sequences together.
        draft: a drafting round, by tokens drafted.
        commit: a dense pass over provisional tokens, by their number.
        steps: how many steps were measured here, by draft tokens asked for and budget scale.
    """

    context: float
    switches: deque[float]
    verify: dict[float, CostCurve] = field(default_factory=dict)
    draft: CostCurve = field(default_factory=lambda: CostCurve(from_zero=True))
    commit: CostCurve = field(default_factory=CostCurve)
    steps: Counter[tuple[int, float]] = field(default_factory=Counter)

    @property
    def switch(self) -> float:
        """What a step costs more when the number of drafted tokens, and so all shapes, has changed."""
        return median(self.switches) if self.switches else 0.0

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
        self.pace = 1.0

    @property
    def read_cost(self) -> float:
        """Microseconds per token that a drafter has to catch up with; 0.0 while unknown."""
        return median(self._read) if self._read else 0.0

    def cell(self, contexts: tuple[int, ...]) -> CostCell:
        """The cell of a batch; a new one starts from its neighbours."""
        number, context = len(contexts), sum(contexts) / len(contexts)
        # Thirds of an octave: between and beyond them costs are linear in context.
        key = number, int(max(context, _SHORTEST_CONTEXT) ** 3).bit_length()
        if key not in self._cells:
            self._cells[key] = self._opened(number, context)
        return self._cells[key]

    def begin(self) -> None:
        """Another call begins: its first step has passes of other shapes before it."""
        self._last_shape = None

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from a step."""
        cell, drafted = self.cell(outcome.contexts), sum(outcome.proposed)
        asked, scale = outcome.plan.num_assistant_tokens, outcome.plan.budget_scale or 1.0
        duration = (outcome.verify_duration + outcome.host_duration) / self.pace
        shape = len(outcome.contexts), drafted
        switched, self._last_shape = shape != self._last_shape, shape
        if outcome.commit_rows:
            cell.commit.add(outcome.commit_rows, outcome.commit_duration / self.pace)
            self._last_shape = None
        if shape not in self._warm:
            # The first pass of a shape makes its kernels: by that alone one would never come back to it.
            self._warm.add(shape)
            if any(curve.sizes for curve in cell.verify.values()):
                return
        cell.steps[asked, scale] += 1
        verify = cell.verify.setdefault(scale, CostCurve())
        if verify.is_known(drafted):
            usual = verify.at(drafted)
            if switched:
                self._switches.append(max(0.0, duration - usual))
                return
            self._residuals.append(duration * self.pace / usual)
            self.pace = median(self._residuals)
        # A size of which little is known is not left to steady steps: lookups may never have two alike.
        verify.add(drafted, max(duration - (cell.switch if switched else 0.0), 0.0))
        if asked:
            self._observe_draft(cell, outcome, drafted)

    def _observe_draft(self, cell: CostCell, outcome: StepOutcome, drafted: int) -> None:
        duration, asked = outcome.draft_duration / self.pace, outcome.plan.num_assistant_tokens
        if outcome.caught_up <= asked:
            cell.draft.add(drafted, duration)
        else:
            self._read.append(max(duration - cell.draft.at(drafted), 0.0) / outcome.caught_up)

    def _opened(self, number: int, context: float) -> CostCell:
        cell = CostCell(context, self._switches)

        def distance(item: tuple[tuple[int, int], CostCell]) -> tuple[int, float]:
            return abs(item[0][0] - number), _distance(item[1].context, context)

        near = sorted(self._cells.items(), key=distance)
        same = [other for (size, _), other in near[1:2] if size == number]
        for _, found in near[:1]:
            for scale, curve in found.verify.items():
                scales = _scales(curve, found.context, same, scale, context)
                cell.verify.setdefault(scale, CostCurve()).seed(curve, scales)
            cell.draft.seed(found.draft, {})
            cell.commit.seed(found.commit, {})
        return cell


def _distance(one: float, other: float) -> float:
    """How far two positive numbers are apart as a ratio, where one may be infinite."""
    return 0.0 if one == other else abs(math.log(one) - math.log(other))


def _robust(values: deque[float]) -> float:
    """The median; of few the lower one, as the first passes of a shape compile its kernels."""
    return sorted(values)[(len(values) - 1) // 2] if len(values) < OFTEN else median(values)


def _scales(
    near: CostCurve, near_context: float, others: Iterable[CostCell], scale: float, context: float
) -> dict[int, float]:
    """By size, what the line through two contexts says of a third, over the nearer one's cost."""
    scales: dict[int, float] = {}
    for other in others:
        far = other.verify.get(scale, CostCurve())
        for size in set(near.sizes) & set(far.sizes):
            cost = near.at(size)
            slope = max(0.0, (cost - far.at(size)) / (near_context - other.context))
            scales[size] = (cost + slope * (context - near_context)) / cost
    return scales
