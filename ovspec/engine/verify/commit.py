"""Committed speculation: sparse steps make tokens provisional, dense passes make them final.

To the dense pass, provisional tokens are a draft like any other, and what the drafter proposes behind them is
the rest of it: tokens that are its own stand, and the first that is not is replaced. The output is therefore
that of dense decoding.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from ovspec.engine.requests.request import Writer
from ovspec.engine.requests.request_state import RequestState
from ovspec.engine.requests.request_step import RequestStep
from ovspec.runner.warm_up import MOST_SAMPLED


def is_due(state: RequestState, interval: int | None) -> bool:
    """Whether the provisional tokens of a request are to be confirmed by the next pass.

    Args:
        state: of the request.
        interval: the plan's number of provisional tokens before a commit, 0 for a dense step; `None`: that of
            the mode.
    """
    sequence = state.sequence
    if not sequence.provisional:
        return False
    if interval is None:
        interval = state.mode.commit_intervals[0]
    if sequence.target.length < len(sequence.tokens) - 1:
        return True  # the pass that was to confirm them failed
    # The commit itself yields one more token.
    return sequence.provisional >= interval or has_ended(state) or sequence.remaining <= 1


def has_ended(state: RequestState) -> bool:
    """Whether nothing may follow its provisional tokens."""
    sequence = state.sequence
    if not sequence.provisional:
        return False
    return sequence.tokens[-1] in sequence.settings.stop_token_ids or sequence.ends_with(())


def take_back(requests: SequenceOf[RequestStep]) -> list[RequestStep]:
    """Take back the provisional tokens that are due, of as many requests as a pass has room for.

    The commits of 64 users would be 4,096 rows, and 2.5 GB of logits with a vocabulary of 152,000.

    Returns:
        The requests that the pass advances; others wait for a later one, or have an error.
    """
    due = [request for request in requests if is_due(request.state, request.plan.commit_interval)]
    rows = 0
    for request in sorted(due, key=lambda request: -request.state.passes_waited):
        state = request.state
        rows += state.sequence.provisional + request.proposed + 1
        request.waits = rows > MOST_SAMPLED
        state.passes_waited = state.passes_waited + 1 if request.waits else 0
        with state.faults():
            if request.waits:
                state.sequence.trim_caches()  # what it drafted is not verified
            else:
                request.provisional = state.sequence.take_back()
    return [request for request in requests if not request.waits and request.state.error is None]


def give_back(requests: SequenceOf[RequestStep]) -> None:
    """After a pass that failed: provisional tokens are there again, to be computed anew."""
    for request in requests:
        with request.state.faults():
            if request.provisional:
                request.state.sequence.add_provisional(request.provisional)
                request.provisional = []


def take_provisional(state: RequestState, tokens: list[int], writers: list[Writer]) -> None:
    """Append tokens that a sparse pass accepted, up to one that ends the sequence."""
    ends = state.sequence.ends_with
    end = next((i + 1 for i in range(len(tokens)) if ends(tokens[: i + 1])), len(tokens))
    state.sequence.add_provisional(tokens[:end])
    state.provisional_writers += writers[:end]
