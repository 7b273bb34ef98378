"""Committed speculation: sparse steps make tokens provisional, dense passes make them final.

To the dense pass, provisional tokens are a draft like any other: those that are its own tokens stand, and the
first that is not is replaced. The output is therefore that of dense decoding.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

from ovspec.drafters.drafter import Proposal
from ovspec.engine.requests.request import Writer
from ovspec.engine.requests.request_state import RequestState, count_pass, warn_of_pass
from ovspec.engine.requests.request_step import RequestStep
from ovspec.engine.verify.accept import accept
from ovspec.engine.verify.verifier import Draft, Verifier
from ovspec.errors import fault_of
from ovspec.modes.row_limits import DENSE
from ovspec.runner.warm_up import MOST_SAMPLED
from ovspec.sampling.acceptance import Accepted

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
        interval: the plan's number of provisional tokens before a commit; `None`: that of the mode.
    """
    sequence = state.sequence
    count = sequence.provisional
    if not count:
        return False
    interval = interval or state.mode.commit_intervals[0]
    last = sequence.tokens[-1] in sequence.settings.stop_token_ids or sequence.ends_with(())
    # The commit itself yields one more token.
    return count >= interval or last or sequence.remaining <= 1


def commit(verifier: Verifier, requests: SequenceOf[RequestStep]) -> float:
    """Verify the provisional tokens in dense passes, which rewrite their keys and values.

    Returns:
        Duration of the passes in microseconds; `RequestStep.commit` says what became of each request.
    """
    return sum(_confirm(verifier, _taken_back(together)) for together in _passes(requests))


def _passes(requests: SequenceOf[RequestStep]) -> list[list[RequestStep]]:
    """The requests of each pass: in their order, as many as its rows allow."""
    passes, rows = list[list[RequestStep]](), _MOST_ROWS
    for request in requests:
        own = request.state.sequence.provisional + 1
        if rows + own > _MOST_ROWS:
            passes.append([])
            rows = 0
        passes[-1].append(request)
        rows += own
    return passes


def _taken_back(requests: SequenceOf[RequestStep]) -> list[tuple[RequestStep, Proposal]]:
    """The provisional tokens of each request, which are a draft now."""
    found = list[tuple[RequestStep, Proposal]]()
    for request in requests:
        with request.state.faults():
            found.append((request, Proposal(request.state.sequence.take_back())))
    return found


def _confirm(verifier: Verifier, drafts: SequenceOf[tuple[RequestStep, Proposal]]) -> float:
    """One pass of `commit`; where it fails, one for each request, and who fails alone is at fault."""
    if not drafts:
        return 0.0
    try:
        found = verifier.verify([Draft(r.state.sequence, proposal.tokens, DENSE) for r, proposal in drafts])
    except BaseException as error:
        fault = fault_of(error)
        for request, _ in drafts:
            request.state.sequence.trim_caches()
        if len(drafts) == 1:
            drafts[0][0].state.error = fault
            return 0.0
        warn_of_pass(fault, len(drafts))
        return sum(_confirm(verifier, [draft]) for draft in drafts)
    count_pass(found.stats, [request.state for request, _ in drafts])
    for (request, proposal), own in zip(drafts, found.parts, strict=True):
        state = request.state
        with state.faults():
            accepted = accept(state.sequence, proposal, own.logits)
            verifier.show(state.sequence, own, range(accepted.n))
            _take(state, proposal, accepted, own.logits)
            request.commit = len(proposal.tokens), accepted.n
    return found.stats.duration


def _take(state: RequestState, proposal: Proposal, accepted: Accepted, logits: NDArray[np.float32]) -> None:
    """Make final what the dense pass lets stand, with the token behind it."""
    count = len(proposal.tokens)
    last: Writer = "target" if accepted.n == count else "corrected"
    writers = [*state.provisional_writers[: accepted.n], last]
    state.provisional_writers = []
    tokens = [*proposal.tokens[: accepted.n], accepted.next_token]
    state.emit(tokens, writers, logits, range(len(tokens)))
