"""Replay of recorded offers: the speed of every policy, from a trace and a table of measured costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ovspec.bench.offers import LONGEST, AnswerOffers, Offer, OfferTrace
from ovspec.drafters.suffix import TOKENS_PER_MATCH
from ovspec.modes.row_limits import MAX_NUM_ASSISTANT_TOKENS
from ovspec.schedule.controller import AutoSchedule
from ovspec.schedule.schedule import ModelAsk, Plan, SequenceOutcome, StepOutcome, StepState

ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class CostTable:
    """What passes and drafts take.

    Attributes:
        contexts: tokens in the cache, ascending.
        rows: of a pass, ascending.
        milliseconds: of a pass, by context and rows; linear between them.
        draft_ms: of a token of a model's draft.
    """

    contexts: list[int]
    rows: list[int]
    milliseconds: list[list[float]]
    draft_ms: float = 0.0

    def verify(self, rows: int, context: int) -> float:
        """Microseconds of a pass."""
        by_context = [np.interp(rows, self.rows, costs) for costs in self.milliseconds]
        return 1000 * float(np.interp(context, self.contexts, by_context))


@dataclass(frozen=True, slots=True)
class Policy:
    """A drafter and how much is drafted.

    Attributes:
        name: of it; the drafter, or the drafter and a fixed number of tokens, as in `suffix:4`.
    """

    name: str

    def check(self, trace: OfferTrace) -> None:
        """Refuse a name that is none, or a drafter of which the trace has no offers."""
        known = {"plain", "auto", *(name for answer in trace.answers for name in answer.offers)}
        number = self.name.partition(":")[2]
        fixed = ":" in self.name
        if self.drafter not in known or (fixed and (self.drafter == "plain" or not _is_number(number))):
            raise ValueError(
                f"--policy {self.name}: expected some of {', '.join(sorted(known))}, a drafter also with a "
                f"number of tokens from 1 to {LONGEST}, as in suffix:4"
            )

    @property
    def drafter(self) -> str:
        """The drafter's name; "plain": none."""
        return {"lookup": "prompt_lookup"}.get(found := self.name.partition(":")[0], found)

    @property
    def tokens(self) -> int | None:
        """The fixed number of tokens; `None`: as the schedule decides."""
        number = self.name.partition(":")[2]
        return int(number) if number else None


def _is_number(text: str) -> bool:
    return text.isdecimal() and 1 <= int(text) <= LONGEST


def replay(trace: OfferTrace, costs: CostTable, policy: Policy) -> dict[str, float]:
    """Tokens per second of a policy by category, its schedule's memory kept from answer to answer."""
    schedule = AutoSchedule(MAX_NUM_ASSISTANT_TOKENS)
    tokens, times = dict[str, int](), dict[str, float]()
    for answer in trace.answers:
        category = answer.category
        times[category] = times.get(category, 0.0) + _answer(answer, costs, policy, schedule)
        tokens[category] = tokens.get(category, 0) + answer.positions
    return {category: 1e6 * tokens[category] / times[category] for category in times}


def _answer(answer: AnswerOffers, costs: CostTable, policy: Policy, schedule: AutoSchedule) -> float:
    """Microseconds of an answer behind its first token."""
    place, total = 0, 0.0
    names = _asked(policy, answer.offers)
    has_model, has_lookup = ASSISTANT in names, names != [ASSISTANT]
    while place < answer.positions:
        context, remaining = answer.prompt_tokens + place + 1, answer.positions - place
        offers = {name: answer.offers[name][place] for name in names}
        if policy.drafter == "plain" or policy.tokens is not None:
            offer = _fixed(offers, min(policy.tokens or 0, remaining - 1))
            total += costs.verify(1 + offer.tokens, context)
            total += 1000 * costs.draft_ms * offer.tokens * has_model
            place += offer.accepted + 1
            continue
        state = StepState(
            (context,),
            (remaining,),
            min(MAX_NUM_ASSISTANT_TOKENS, remaining - 1),
            has_lookup=has_lookup,
            has_model=has_model,
        )
        plan = schedule.plan(state)
        offer, whole, of_model = _planned(schedule, plan, offers)
        drafting = 1000 * costs.draft_ms * of_model
        duration = costs.verify(1 + offer.tokens, context)
        judged = min(offer.accepted + 1, whole.tokens)
        agreed = min(judged, whole.accepted)
        one = SequenceOutcome(context, offer.tokens, offer.accepted, whole.match, judged, agreed)
        schedule.observe(StepOutcome(plan, (one,), drafting, duration, model_tokens=of_model))
        total += duration + drafting
        place += offer.accepted + 1
    return total


def _asked(policy: Policy, offers: Mapping[str, Sequence[Offer]]) -> list[str]:
    if policy.drafter == "auto":
        return [name for name in ("suffix", ASSISTANT) if name in offers]
    return [] if policy.drafter == "plain" else [policy.drafter]


def _cut(offer: Offer, tokens: int) -> Offer:
    tokens = max(0, min(offer.tokens, tokens))
    return Offer(offer.match, tokens, min(offer.accepted, tokens))


def _fixed(offers: Mapping[str, Offer], tokens: int) -> Offer:
    """The first draft of so many tokens at most."""
    for name, offer in offers.items():
        found = _cut(offer, min(tokens, TOKENS_PER_MATCH * offer.match) if name == "suffix" else tokens)
        if found.tokens:
            return found
    return Offer(0, 0, 0)


def _planned(schedule: AutoSchedule, plan: Plan, offers: Mapping[str, Offer]) -> tuple[Offer, Offer, int]:
    """What is verified, the whole draft that it is of, and the tokens that a model drafted."""
    ask = plan.model or ModelAsk(plan.num_assistant_tokens)
    lookup = next((offer for name, offer in offers.items() if name != ASSISTANT), Offer(0, 0, 0))
    model = _cut(offers.get(ASSISTANT, Offer(0, 0, 0)), ask.tokens)
    whole = _cut(lookup, plan.num_assistant_tokens)
    if model.tokens and (not whole.tokens or lookup.match < ask.least_match):
        return model, model, model.tokens
    likely = schedule.likely(whole.match, whole.tokens) or []
    least = schedule.least_confidence(likely) if likely else 0.0
    return _cut(whole, sum(value >= least for value in likely)), whole, 0
