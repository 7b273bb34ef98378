"""Committed speculation: sparse steps make tokens provisional, dense passes make them final.

To the dense pass, provisional tokens are a draft like any other: those that are its own tokens stand, and the
first that is not is replaced. The output is therefore that of dense decoding.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from ovspec.drafters.drafter import Proposal
from ovspec.engine.accept import accept
from ovspec.engine.request import Writer
from ovspec.engine.request_state import RequestState, count_pass
from ovspec.engine.verifier import Verifier
from ovspec.runtime.warm_up import MOST_SAMPLED
from ovspec.verify.limits import DENSE

# The commits of 64 users in one pass would be 4,096 rows, and 2.5 GB of logits with a vocabulary of 152,000.
_MOST_ROWS = MOST_SAMPLED


def take_provisional(state: RequestState, tokens: list[int], writers: list[Writer]) -> None:
    """Append tokens that a sparse pass accepted, up to a stop token."""
    stops = state.sequence.settings.stop_token_ids
    end = next((i + 1 for i, token in enumerate(tokens) if token in stops), len(tokens))
    state.sequence.add_provisional(tokens[:end])
    state.provisional_writers += writers[:end]


def is_due(state: RequestState, interval: int | None) -> bool:
    """Whether the provisional tokens of a request are to be confirmed now.

    Args:
        state: of the request.
        interval: the plan's number of provisional tokens before a commit; `None`: the configured one.
    """
    sequence = state.sequence
    count = len(sequence.provisional)
    if not count:
        return False
    interval = interval or state.mode.interval or sequence.provisional.interval
    last = sequence.tokens[-1] in sequence.settings.stop_token_ids
    # The commit itself yields one more token.
    return count >= interval or last or sequence.remaining <= 1


def commit(verifier: Verifier, states: SequenceOf[RequestState]) -> tuple[list[tuple[int, int]], float]:
    """Verify the provisional tokens in dense passes, which rewrite their keys and values.

    Returns:
        Per request, how many tokens were provisional, and how many of them were kept; duration of the passes
        in microseconds.
    """
    outcomes, duration = list[tuple[int, int]](), 0.0
    for together in _passes(states):
        outcomes += _commit(verifier, together)
        duration += verifier.stats.duration
    return outcomes, duration


def _passes(states: SequenceOf[RequestState]) -> list[list[RequestState]]:
    """The requests of each pass: in their order, as many as its rows allow."""
    passes, rows = list[list[RequestState]](), _MOST_ROWS
    for state in states:
        own = len(state.sequence.provisional) + 1
        if rows + own > _MOST_ROWS:
            passes.append([])
            rows = 0
        passes[-1].append(state)
        rows += own
    return passes


def _commit(verifier: Verifier, states: SequenceOf[RequestState]) -> list[tuple[int, int]]:
    proposals = [Proposal(state.sequence.take_back()) for state in states]
    drafts = [(s.sequence, proposal.tokens) for s, proposal in zip(states, proposals, strict=True)]
    logits = verifier.verify(drafts, [DENSE] * len(drafts))
    outcomes = []
    count_pass(verifier.stats, states)
    for index, (state, proposal, rows) in enumerate(zip(states, proposals, logits, strict=True)):
        accepted = accept(state.sequence, proposal, rows)
        verifier.show(index, state.sequence, range(accepted.n))
        count = len(proposal.tokens)
        state.sequence.provisional.adapt(accepted.n, count)
        last: Writer = "target" if accepted.n == count else "corrected"
        writers = [*state.provisional_writers[: accepted.n], last]
        state.provisional_writers = []
        tokens = [*proposal.tokens[: accepted.n], accepted.next_token]
        state.emit(tokens, writers, rows, range(len(tokens)))
        outcomes.append((count, accepted.n))
    return outcomes
