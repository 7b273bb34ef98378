"""The schedule `auto`: of all choices the one of most expected tokens per second.

A step is worth its tokens less what its time would have yielded at the speed of late. So a token is drafted
while it is likelier than the price of its row. Goodput in TurboSpec (arXiv 2406.14066) and the rule of EVICT
for trees (arXiv 2605.00342) compare the same two things.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from ovspec.schedule.acceptance import AcceptanceModel
from ovspec.schedule.cost import CostCell, CostModel
from ovspec.schedule.schedule import ModelAsk, Plan, Schedule, StepOutcome, StepState

# Steps over which the speed of late is taken.
_STEPS = 64.0
# Lengths of matches that a model's drafts are compared with.
_MATCHES = (1, 2, 3, 4, 8, 16)


class _Choice(NamedTuple):
    """A step of a model's drafts, and what it is expected to gain over one without them."""

    gain: float
    tokens: int
    interval: int | None


class _Late(NamedTuple):
    """Of late: final tokens and microseconds; steps of sequences, with their drafted and accepted tokens."""

    tokens: float = 0.0
    time: float = 0.0
    steps: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0


class AutoSchedule(Schedule):
    """Chooses draft tokens and commit interval by expected tokens per second.

    Costs and acceptance are measured while it runs, and kept from call to call.

    Args:
        max_num_assistant_tokens: longest draft it may ask for.
        fixed: whether every draft has that length, so that the interval alone is chosen.
    """

    def __init__(self, max_num_assistant_tokens: int, fixed: bool = False) -> None:
        self._most, self._costs, self._fixed = max_num_assistant_tokens, CostModel(), fixed
        self._acceptance = AcceptanceModel()
        self._state = StepState((), (), 0)
        self._late = _Late()
        self._choice = _Choice(0.0, 0, None)
        self._dense_steps = 0
        self._nodes = float(max_num_assistant_tokens)

    def plan(self, state: StepState) -> Plan:
        """Lookups are asked for all they have; a model for what it is expected to gain by."""
        self._state = state
        limit, cell = min(state.max_draft, self._most), self._costs.cell(state.contexts)
        lengths = state.has_model and not self._fixed
        if not (lengths or len(state.commit_intervals) > 1):
            self._choice = _Choice(0.0, 0, state.commit_intervals[0] if state.commit_intervals else None)
        elif self._dense_steps:
            self._dense_steps -= 1
        elif min(state.pending, default=0) == 0:  # one of them has just committed
            self._choice = self._best(cell, limit)
            dense = self._fixed and self._choice.interval == 0  # holds as long as the shortest interval
            self._dense_steps = state.commit_intervals[1] - 1 if dense else 0
        _, tokens, interval = self._choice
        if self._fixed:
            return Plan(self._most, interval)
        # What a plain step costs is known first.
        tokens = min(tokens, limit) if cell.curve(interval).is_known(0) else 0
        if not state.has_lookup:
            return Plan(tokens, interval)
        least = self._least_match(cell, limit) if tokens else 0
        return Plan(limit, interval, ModelAsk(tokens, least))

    def likely(self, match: int, tokens: int) -> list[float] | None:
        """Probability of coming to each token that a lookup proposed."""
        return None if self._fixed else self._acceptance.likely(match, tokens)

    def least_confidence(self, confidences: SequenceOf[float]) -> float:
        """Keep the tokens of most expected worth: those whose probability is above the price of their row."""
        if self._fixed:
            return 0.0
        likely = sorted(confidences, reverse=True)
        worths = _worths(likely, self._prices(self._costs.cell(self._state.contexts), len(likely)))
        return (math.inf, *likely)[worths.index(max(worths))]

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from what the step cost and yielded."""
        self._costs.observe(outcome)
        for one in outcome.sequences:
            self._acceptance.observe(one.match, one.judged, one.agreed)
        commits = [one.commit for one in outcome.sequences if one.commit]
        for count, kept in commits:
            self._acceptance.observe_commit(count, kept)
        if outcome.plan.commit_interval == 0 and not commits:
            self._acceptance.confirmed.fade()  # what was corrected is tried again at some time
        if outcome.model_tokens:
            # A grammar's draft is not judged.
            own = [one.proposed for one in outcome.sequences if one.judged and not one.match]
            self._nodes = sum(own) / max(1, len(own))
        else:
            self._acceptance.model.fade()
        number = len(outcome.sequences)
        accepted = sum(one.accepted for one in outcome.sequences)
        proposed = sum(one.proposed for one in outcome.sequences)
        # Behind a token that a commit corrected, no draft was reached.
        reached = number - sum(kept < count for count, kept in commits)
        tokens = accepted + number - sum(count - kept for count, kept in commits)
        time, drafted = outcome.draft_duration + outcome.duration, proposed * reached / number
        new = _Late(tokens, time, reached, drafted, accepted)
        self._late = _Late(*(old - old / _STEPS + one for old, one in zip(self._late, new, strict=True)))

    @property
    def _price(self) -> float:
        """Tokens per microsecond of late, for all sequences together."""
        return max(0.0, self._late.tokens) / self._late.time if self._late.time else 0.0

    def _prices(self, cell: CostCell, tokens: int) -> list[float]:
        """Tokens that passes of 0, 1, .. drafted ones must bring to be worth their time."""
        price, curve = self._price, cell.curve(self._choice.interval)
        return [price * curve.at(rows) for rows in range(tokens + 1)]

    def _best(self, cell: CostCell, limit: int) -> _Choice:
        """The choice of most worth; of trees the largest, of which `least_confidence` keeps a part."""
        state, acceptance, sequences = self._state, self._acceptance, len(self._state.contexts)
        lengths = np.array([0, limit]) if state.trees else np.arange(limit + 1)
        lengths = lengths[-1:] if self._fixed else lengths
        # Of a tree as many nodes as were kept of the last ones.
        rows = np.minimum(lengths, self._nodes) if state.trees else lengths
        yielded = 1.0 + np.cumsum([0.0, *acceptance.likely(0, int(lengths[-1]))])[lengths]
        if not state.has_model:  # lookups have what they had of late
            late, steps, lengths = self._late, self._late.steps or 1.0, lengths[:1] * 0
            rows, yielded = lengths + late.drafted / steps, lengths + 1.0 + late.accepted / steps
        drafting = np.array([cell.draft.at(sequences * length) for length in lengths])
        reading = state.unread * self._costs.read_cost * yielded / max(1, min(state.remaining))
        found = []
        # What commits cost is known up to twice the rows that were measured.
        most = max(2 * cell.dense.largest // sequences, *state.commit_intervals[:2], 0)
        intervals = [interval for interval in state.commit_intervals if interval <= most]
        for interval in intervals or (None,):
            verify = np.array([cell.curve(interval).at(sequences * row) for row in rows])
            cost, kept = verify + drafting + np.where(lengths > 0, reading, 0.0), np.ones(len(lengths))
            if interval:
                # The dense pass yields what it confirms, and a step behind it or the token that it corrects.
                rates = acceptance.confirmed.rates(1)[0] ** np.arange(1, interval + 1)
                kept = (float(rates.sum()) + 1.0 + float(rates[-1]) * (yielded - 1.0)) / interval
                dense = np.array([cell.curve(0).at(sequences * (interval + row)) for row in rows])
                cost = cost + yielded / interval * (dense + cost - verify)
            # What was never tried is taken to be cheap, so it is tried.
            if interval is not None and (cell.verify if interval else cell.dense).largest < 0:
                cost = cost / 2
            found.append((sequences * yielded * kept, cost, interval))
        # The speed of late may be that of a choice that failed; that of the best one can be had.
        speeds = [float((tokens / np.maximum(cost, 1.0)).max()) for tokens, cost, _ in found]
        price = max(self._price, *speeds)
        worths = [tokens - price * cost for tokens, cost, _ in found]
        worth, (*_, interval) = max(zip(worths, found, strict=True), key=lambda both: both[0].max())
        return _Choice(float(worth.max() - worth[0]), int(lengths[np.argmax(worth)]), interval)

    def _least_match(self, cell: CostCell, limit: int) -> int:
        """The shortest match behind which a lookup is expected to gain more than the model."""
        prices = self._prices(cell, min(limit, _MATCHES[-1]))
        for match in _MATCHES:
            worths = _worths(self._acceptance.likely(match, min(limit, match)), prices)
            if max(worths) - worths[0] >= self._choice.gain / len(self._state.contexts):
                return match
        return 2 * _MATCHES[-1]


def _worths(likely: SequenceOf[float], prices: SequenceOf[float]) -> list[float]:
    """What drafts of 0, 1, .. tokens are worth: those expected, less the prices of their rows."""
    return [tokens - price for tokens, price in zip(accumulate(likely, initial=0.0), prices, strict=False)]
