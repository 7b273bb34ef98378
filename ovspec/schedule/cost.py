"""Cost per number of rows: what steps take, by context, sequences and sparse budget.

TurboSpec (arXiv 2406.14066) models the time of a pass by its number of tokens. Here medians of measured steps
take the place of its linear model: one more row costs now nothing, now a third of a pass.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from dataclasses import dataclass, field
from statistics import median, median_low

import numpy as np
from numpy.typing import NDArray

from ovspec.schedule.schedule import StepOutcome

# Samples after which the cost of a size is known, and the most that are kept.
KNOWN = 3
_MEMORY = 24
# What a row costs at most that was never measured, as a share of the largest pass that was.
_UNSEEN_ROW = 0.02
# Times the dearest size before it that one sample of a size may count for.
_MOST_STEP = 2.0
# Contexts within so many tokens share their costs.
_CELL_TOKENS = 512

Array = NDArray[np.float64]


class CostCurve:
    """Cost by size."""

    def __init__(self) -> None:
        self._samples: dict[int, list[float]] = {}
        self._medians: dict[int, float] = {}

    def add(self, size: int, cost: float) -> None:
        """Take a measured cost."""
        # Lists, as many sizes are seen once: an empty deque takes 0.6 kB.
        samples = self._samples.setdefault(size, [])
        samples.append(cost)
        del samples[:-_MEMORY]
        # Of two the lower one: the first passes of a shape compile its kernels. One alone is not believed to
        # be far off the others: a size that seems too dear is never measured again.
        dearest = max(self._medians.values(), default=0.0)
        most = _MOST_STEP * dearest if dearest and len(samples) == 1 else math.inf
        self._medians[size] = min(median_low(samples), most)

    def seed(self, other: CostCurve) -> None:
        """Start from what is known in another curve; what is measured soon outvotes it."""
        for size in list(filter(other.is_known, other.sizes)) or other.sizes:
            for _ in range(KNOWN - 1):
                self.add(size, other.at(size))

    @property
    def sizes(self) -> list[int]:
        """Sizes with a cost of their own, ascending."""
        return sorted(self._samples)

    def is_known(self, size: int) -> bool:
        """Whether a size was measured often enough to tell the pace of the machine by it."""
        return len(self._samples.get(size, ())) >= KNOWN

    def at(self, size: int) -> float:
        """Cost of one size; 0.0 when no size is known."""
        known = self._medians.get(size)
        return float(self.predict(np.array([size]))[0]) if known is None else known

    def predict(self, sizes: NDArray[np.int64]) -> Array:
        """Cost of every size, f64 `[sizes]`: medians, linear between and beyond them."""
        if not self._medians:
            return np.zeros(len(sizes))
        known = self.sizes
        costs = [self._medians[size] for size in known]
        result: Array = np.interp(sizes, known, costs)
        if len(known) > 1:
            # Beyond what was measured it rises as it does on the whole, or less: a longer draft is tried.
            slope = max(0.0, (costs[-1] - costs[0]) / (known[-1] - known[0]))
            result += min(slope, _UNSEEN_ROW * costs[-1]) * np.maximum(sizes - known[-1], 0)
        return result


@dataclass(slots=True)
class CostCell:
    """Costs at about one context and one number of sequences, in microseconds at the usual pace.

    Attributes:
        switches: samples of `switch`; all cells share them.
        verify: verification and host, by budget scale and by tokens drafted in all sequences together.
        draft: a drafting round, by tokens drafted; no tokens cost nothing until they are seen to.
        commit: a dense pass over provisional tokens, by their number.
    """

    switches: deque[float]
    verify: defaultdict[float, CostCurve] = field(default_factory=lambda: defaultdict(CostCurve))
    draft: CostCurve = field(default_factory=CostCurve)
    commit: CostCurve = field(default_factory=CostCurve)

    def __post_init__(self) -> None:
        self.draft.add(0, 0.0)

    @property
    def switch(self) -> float:
        """What a step costs more when the number of drafted tokens, and so all shapes, has changed."""
        return median(self.switches) if self.switches else 0.0

    def verify_at(self, scale: float) -> CostCurve:
        """The curve of a budget scale; while it is unknown, that of commits or of the nearest scale."""
        if scale == math.inf and scale not in self.verify and self.commit.sizes:
            return self.commit
        if scale in self.verify or not self.verify:
            return self.verify[scale]
        return self.verify[min(self.verify, key=lambda known: abs(math.log(known) - math.log(scale)))]


class CostModel:
    """What was measured in every cell, and the pace of the machine.

    Durations are divided by the present pace, the median of what the last steps took over what they were
    expected to take. So a machine that slows down does not make the choice of this moment look bad; what
    counts are the ratios between choices, each measured among steps of the other.
    """

    def __init__(self) -> None:
        self._cells: dict[tuple[int, int], CostCell] = {}
        self._residuals: deque[float] = deque(maxlen=_MEMORY)
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
        """The cell of a batch; a new one starts from the nearest one."""
        number = len(contexts)
        key = number, sum(contexts) // (number * _CELL_TOKENS)
        if key not in self._cells:
            cell = CostCell(self._switches)
            if self._cells:
                nearest = min(self._cells, key=lambda other: (abs(other[0] - number), abs(other[1] - key[1])))
                near = self._cells[nearest]
                for scale, curve in near.verify.items():
                    cell.verify[scale].seed(curve)
                cell.draft.seed(near.draft)
                cell.commit.seed(near.commit)
            self._cells[key] = cell
        return self._cells[key]

    def begin(self) -> None:
        """Another call begins: its first step has passes of other shapes before it."""
        self._last_shape = None

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from a step."""
        cell, drafted = self.cell(outcome.contexts), sum(outcome.proposed)
        duration = outcome.duration / self.pace
        shape = len(outcome.contexts), drafted
        switched, self._last_shape = shape != self._last_shape, shape
        if outcome.commit_rows:
            cell.commit.add(outcome.commit_rows, outcome.commit_duration / self.pace)
            self._last_shape = None
        if shape not in self._warm:
            # The first pass of a shape compiles kernels. By its time the shape would never be tried again.
            self._warm.add(shape)
            if any(curve.sizes for curve in cell.verify.values()):
                return
        verify = cell.verify[outcome.plan.budget_scale or 1.0]
        if verify.is_known(drafted):
            usual = verify.at(drafted)
            if switched:
                self._switches.append(max(0.0, duration - usual))
                return
            self._residuals.append(duration * self.pace / usual)
            self.pace = median(self._residuals)
        # A size of which little is known is not left to steady steps: lookups may never have two alike.
        # The first changes of shapes may have been slow ones: no step is left without a cost.
        verify.add(drafted, max(duration - cell.switch, duration / 2) if switched else duration)
        drafting, asked = outcome.draft_duration / self.pace, outcome.plan.num_assistant_tokens
        if outcome.caught_up > asked:
            self._read.append(max(drafting - cell.draft.at(drafted), 0.0) / outcome.caught_up)
        elif asked:
            cell.draft.add(drafted, drafting)
