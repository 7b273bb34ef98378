"""A simulated machine and text: what schedules cost and yield, by a virtual clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ovspec.schedule.schedule import ConstantSchedule, Schedule, SequenceOutcome, StepOutcome, StepState

MAX_DRAFT = 63
# Tokens emitted so far -> rate at which a draft token is accepted.
Text = Callable[[int], float]


@dataclass
class Machine:
    """Costs in microseconds.

    Attributes:
        row: what a pass costs by rows, context and whether it is dense.
        draft: of a round by tokens drafted.
        read: per token that the drafter has to catch up with.
        switch: what a verification pass costs more when its number of rows has changed.
        noise: standard deviation of the logarithm of every duration.
        hiccup: share of the passes that take four times as long.
        drift: standard deviation by which the logarithm of the machine's pace walks, per duration.
        cold: how many times as long the first pass of a number of rows takes.
    """

    row: Callable[[int, float, bool], float]
    draft: Callable[[int], float]
    read: float = 0.0
    switch: float = 0.0
    noise: float = 0.05
    hiccup: float = 0.01
    drift: float = 0.0
    cold: float = 1.0
    warm: set[int] = field(default_factory=set)

    def verify(self, rows: int, context: float, dense: bool) -> float:
        """A verification pass, on warm kernels from the second of its shape on."""
        factor = 1.0 if rows in self.warm else self.cold
        self.warm.add(rows)
        return factor * self.row(rows, context, dense)


class Clock:
    """Makes durations what a real machine would show, and adds up what they are without its noise."""

    def __init__(self, machine: Machine, seed: int) -> None:
        self._machine = machine
        self._rng = np.random.default_rng(seed)
        self._pace = 0.0
        self.work = 0.0

    def took(self, duration: float) -> float:
        self.work += duration
        self._pace += self._machine.drift * self._rng.standard_normal()
        slow = 4.0 if self._rng.random() < self._machine.hiccup else 1.0
        return duration * slow * math.exp(self._pace + self._machine.noise * self._rng.standard_normal())


@dataclass
class Run:
    """Tokens and time of a simulated call, step by step; the time is what it would be without noise."""

    tokens: list[float] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)

    def rate(self, begin: int = 64, end: float = math.inf) -> float:
        """Tokens per microsecond between two numbers of tokens."""
        tokens, clock = np.array(self.tokens), np.array(self.clock)
        first = int(np.searchsorted(tokens, begin))
        last = min(int(np.searchsorted(tokens, end)), len(tokens) - 1)
        return float((tokens[last] - tokens[first]) / (clock[last] - clock[first]))


@dataclass
class World:
    """A machine, a text and a drafter.

    Attributes:
        acceptance: rate at which a draft token is accepted, by tokens emitted so far.
        offers: rate at which the drafter has another token to offer, by tokens emitted so far.
        confirmed: rate at which a dense pass confirms a provisional token.
        asked: longest draft that the sequences ask for.
        lookup: whether a lookup drafts, which costs nothing, and not a model.
    """

    machine: Machine
    acceptance: Text
    context: int = 512
    offers: Text = lambda _: 1.0
    confirmed: float = 1.0
    commit_intervals: tuple[int, ...] = ()
    reads: bool = False
    asked: int = 2**31 - 1
    lookup: bool = False

    def run(self, schedule: Schedule, tokens: int, seed: int, sequences: int = 1) -> Run:
        """Generate `tokens` per sequence."""
        clock, text = Clock(self.machine, seed), np.random.default_rng(seed + 1)
        run, emitted, pending, unread = Run(), 0.0, 0, self.context
        last = -1
        while emitted < tokens:
            done = int(emitted)
            remaining = (tokens - done,) * sequences
            state = StepState(
                contexts=(self.context + done,) * sequences,
                remaining=remaining,
                max_draft=min(MAX_DRAFT, self.asked, tokens - done - 1),
                unread=unread if self.reads else 0,
                pending=(pending,) * sequences if self.commit_intervals else (),
                commit_intervals=self.commit_intervals,
                has_lookup=self.lookup,
                has_model=not self.lookup,
            )
            plan = schedule.plan(state)
            assert 0 <= plan.num_assistant_tokens <= MAX_DRAFT
            asked = min(plan.num_assistant_tokens, state.max_draft)
            proposed = [_run_length(text, self.offers(done), asked) for _ in range(sequences)]
            accepted = [_run_length(text, self.acceptance(done), p) for p in proposed]
            commits = pending and pending >= (plan.commit_interval or 0)
            dense, rows = plan.commit_interval == 0 or commits, pending if commits else 0
            caught_up = unread if self.reads and asked else 0
            drafts = asked and not self.lookup
            drafting = self.machine.draft(sum(proposed)) + caught_up * self.machine.read if drafts else 0.0
            drafted = sum(proposed) + sequences * rows
            verify = clock.took(self.machine.verify(sequences + drafted, state.contexts[0], dense))
            if drafted != last:
                verify += clock.took(self.machine.switch)
            last = drafted
            unread = 0 if asked else unread + 1
            confirmed = _run_length(text, self.confirmed, rows)
            reached = confirmed == rows
            gained = sum(accepted) / sequences + 1 if reached else 1.0
            if self.commit_intervals and not dense:
                pending += int(gained)
                gained = 0
            elif commits:
                gained, pending = gained + confirmed, 0
            outcome = StepOutcome(
                plan=plan,
                sequences=tuple(
                    SequenceOutcome(
                        state.contexts[0],
                        tokens_proposed,
                        tokens_accepted if reached else 0,
                        match=int(self.lookup),
                        judged=tokens_proposed if reached else 0,
                        agreed=tokens_accepted if reached else 0,
                        commit=(rows, confirmed) if rows else None,
                    )
                    for tokens_proposed, tokens_accepted in zip(proposed, accepted, strict=True)
                ),
                draft_duration=clock.took(drafting) if drafts else 0.0,
                duration=verify + clock.took(20.0),
                caught_up=caught_up,
                model_tokens=0 if self.lookup else sum(proposed),
            )
            schedule.observe(outcome)
            emitted += gained
            run.tokens.append(emitted)
            run.clock.append(clock.work)
            run.drafts.append(asked)
        return run

    def fixed(self, lengths: tuple[int, ...], tokens: int, seed: int, begin: int = 64) -> dict[int, float]:
        """Tokens per microsecond of every fixed draft length."""
        return {length: self.run(ConstantSchedule(length), tokens, seed).rate(begin) for length in lengths}


def _run_length(text: np.random.Generator, rate: float, most: int) -> int:
    """How many of `most` come before the first failure."""
    if most == 0:
        return 0
    failures = np.flatnonzero(text.random(most) >= rate)
    return int(failures[0]) if len(failures) else most
