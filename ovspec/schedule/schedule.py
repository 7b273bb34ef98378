"""Schedules: how many tokens to draft, and what verification may spend, step by step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as SequenceOf
from typing import NamedTuple

SCHEDULES = ("constant", "auto")


class StepState(NamedTuple):
    """What a schedule may know before a step.

    Attributes:
        contexts: tokens of every running sequence, prompt and output, provisional ones included.
        remaining: new tokens that each of them may still get.
        max_draft: longest draft that this step can use: of the rows that a pass verifies and of `remaining`.
        unread: tokens that the drafter has yet to read before it can draft, over all sequences.
        pending: provisional tokens of each sequence that no dense pass has confirmed; 0 without commits.
        commit_intervals: tokens after which a commit may come, ascending, 0 a dense step; () without commits.
        has_lookup, has_model: who drafts: a lookup, which costs nothing, a model, or both.
        trees: whether drafts are trees.
    """

    contexts: tuple[int, ...]
    remaining: tuple[int, ...]
    max_draft: int
    unread: int = 0
    pending: tuple[int, ...] = ()
    commit_intervals: tuple[int, ...] = ()
    has_lookup: bool = False
    has_model: bool = False
    trees: bool = False


class ModelAsk(NamedTuple):
    """What a model is to draft where a lookup is asked too.

    Attributes:
        tokens: per sequence at most.
        least_match: the shortest match behind which the lookup's tokens are taken instead; by default one
            behind which most lookups are accepted more often than what small models draft.
    """

    tokens: int
    least_match: int = 4


class Plan(NamedTuple):
    """What a step is to do.

    Attributes:
        num_assistant_tokens: tokens to draft per sequence at most; 0 leaves the drafter alone.
        commit_interval: provisional tokens of a sequence before the dense pass that confirms them; 0: a
            dense step; `None`: as configured.
        model: what a model drafts where it is not the only one; `None`: the same number.
    """

    num_assistant_tokens: int
    commit_interval: int | None = None
    model: ModelAsk | None = None


class SequenceOutcome(NamedTuple):
    """What came of a step for one sequence.

    Attributes:
        context: as in its `StepState`.
        proposed: tokens of its draft.
        accepted: how many of them were accepted.
        match: length of the match behind a draft that a lookup made, 0 of a model.
        judged: tokens of the draft that were compared with the target's, those that were not verified
            included: the token behind the accepted ones is known all the same.
        agreed: how many of these were the target's, from the first on.
        commit: where it committed, its provisional tokens and how many of them were kept. Its draft followed
            them, and was reached where all of them were.
    """

    context: int
    proposed: int = 0
    accepted: int = 0
    match: int = 0
    judged: int = 0
    agreed: int = 0
    commit: tuple[int, int] | None = None


class StepOutcome(NamedTuple):
    """What a step did and cost; durations in microseconds.

    Attributes:
        plan: what it was asked to do.
        sequences: of whose rows its pass consisted: a row of each, its draft, and what it committed.
        draft_duration: of the drafter, models and host, catching up included.
        duration: of all else, the target's verification pass above all.
        caught_up: tokens that the drafter read before it could draft (`StepState.unread` of the step).
        model_tokens: tokens of all drafts that a model made.
    """

    plan: Plan
    sequences: tuple[SequenceOutcome, ...]
    draft_duration: float
    duration: float
    caught_up: int = 0
    model_tokens: int = 0


class Schedule(ABC):
    """Decides what every verification step does, and may learn from what it cost.

    Attributes:
        constant: the plan of every step, where nothing decides it; the engine then asks and tells nothing.
    """

    constant: Plan | None = None

    @abstractmethod
    def plan(self, state: StepState) -> Plan:
        """Called before each step, once for all sequences with this schedule and one mode of verification."""

    def likely(self, match: int, tokens: int) -> list[float] | None:
        """Probability of coming to each token that a lookup proposed behind a match; `None`: verify all."""
        return None

    def least_confidence(self, confidences: SequenceOf[float]) -> float:
        """The confidence below which a step's draft nodes are not verified, from the confidences of all."""
        return 0.0

    def observe(self, outcome: StepOutcome) -> None:
        """Called once after each step, but one whose drafts were all written by grammars."""
        return


class ConstantSchedule(Schedule):
    """The same number of draft tokens in every step."""

    def __init__(self, num_assistant_tokens: int) -> None:
        self.constant: Plan = Plan(num_assistant_tokens)

    def plan(self, state: StepState) -> Plan:
        """That number; the engine cuts what a sequence has no room for."""
        return self.constant
