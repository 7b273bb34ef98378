"""Committed speculation: sparse steps make tokens provisional, dense passes make them final.

To the dense pass, provisional tokens are a draft like any other: those that are its own tokens stand, and the
first that is not is replaced. The output is therefore that of dense decoding.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

from ovspec.drafters.drafter import Proposal
from ovspec.engine.accept import accept
from ovspec.engine.request import Writer
from ovspec.engine.request_state import RequestState, count_pass, warn_of_pass
from ovspec.engine.verifier import Verifier
from ovspec.runtime.warm_up import MOST_SAMPLED
from ovspec.sampling.acceptance import Accepted
from ovspec.verify.limits import DENSE

# The commits of 64 users in one pass would be 4,096 rows, and 2.5 GB of logits with a vocabulary of 152,000.
_MOST_ROWS = MOST_SAMPLED


def take_provisional(state: RequestState, tokens: list[int], writers: list[Writer]) -> None:
    """Append tokens that a sparse pass accepted, up to one that ends the sequence."""
    ends = state.sequence.ends_with
    end = next((i + 1 for i in range(len(tokens)) if ends(tokens[: i + 1])), len(tokens))
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
    last = sequence.tokens[-1] in sequence.settings.stop_token_ids or sequence.ends_with(())
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
        found, took = _confirm(verifier, [(s, Proposal(s.sequence.take_back())) for s in together])
        outcomes += found
        duration += took
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


def _confirm(
    verifier: Verifier, drafts: SequenceOf[tuple[RequestState, Proposal]]
) -> tuple[list[tuple[int, int]], float]:
    """One pass of `commit`; where it fails, one for each request, and who fails alone is at fault."""
    try:
        rows = [(state.sequence, proposal.tokens) for state, proposal in drafts]
        logits = verifier.verify(rows, [DENSE] * len(rows))
    except Exception as error:
        for state, _ in drafts:
            state.sequence.trim_caches()
        if len(drafts) == 1:
            ((state, proposal),) = drafts
            state.error = error
            return [(len(proposal.tokens), 0)], 0.0
        warn_of_pass(error, len(drafts))
        alone = [_confirm(verifier, [draft]) for draft in drafts]
        return [outcome for found, _ in alone for outcome in found], sum(took for _, took in alone)
    count_pass(verifier.stats, [state for state, _ in drafts])
    outcomes = []
    for index, ((state, proposal), own) in enumerate(zip(drafts, logits, strict=True)):
        kept = 0
        with state.faults():
            accepted = accept(state.sequence, proposal, own)
            verifier.show(index, state.sequence, range(accepted.n))
            _take(state, proposal, accepted, own)
            kept = accepted.n
        outcomes.append((len(proposal.tokens), kept))
    return outcomes, verifier.stats.duration


def _take(state: RequestState, proposal: Proposal, accepted: Accepted, logits: NDArray[np.float32]) -> None:
    """Make final what the dense pass lets stand, with the token behind it."""
    count = len(proposal.tokens)
    state.sequence.provisional.adapt(accepted.n, count)
    last: Writer = "target" if accepted.n == count else "corrected"
    writers = [*state.provisional_writers[: accepted.n], last]
    state.provisional_writers = []
    tokens = [*proposal.tokens[: accepted.n], accepted.next_token]
    state.emit(tokens, writers, logits, range(len(tokens)))
