"""What one request does in a step, and the step of all requests."""

from __future__ import annotations

from dataclasses import dataclass, field

from ovspec.drafters.drafter import Proposal
from ovspec.engine.requests.request_state import RequestState
from ovspec.schedule.schedule import Plan, SequenceOutcome


@dataclass(slots=True)
class RequestStep:
    """What a request that decodes does in one step, and what came of it.

    Attributes:
        state: of the request.
        plan: what it is to do.
        proposal: its draft.
        forced: whether its grammar wrote the draft, which then says nothing of the drafter.
        accepted: tokens of the draft that verification accepted.
        judged: its tokens that were compared with the own ones of the target: also the first one cut off,
            where all before it were accepted.
        agreed: how many of those were the target's.
        waits: whether the pass has no room for its commit.
        provisional: the tokens that its pass is to confirm, before the draft.
        commit: how many these were, and how many of them it kept; `None` where it did not commit, or failed
            in it.
        tokens_before: tokens that its output had before.
    """

    state: RequestState
    plan: Plan
    proposal: Proposal = field(default_factory=Proposal)
    forced: bool = False
    accepted: int = 0
    judged: int = 0
    agreed: int = 0
    waits: bool = False
    provisional: list[int] = field(default_factory=list)
    commit: tuple[int, int] | None = None
    tokens_before: int = field(init=False)

    def __post_init__(self) -> None:
        self.tokens_before = len(self.state.output.token_ids)

    @property
    def draft(self) -> Proposal:
        """What its pass verifies: the provisional tokens, and the proposal behind them."""
        return self.proposal.behind(self.provisional)

    @property
    def proposed(self) -> int:
        """Tokens of the proposal."""
        return len(self.proposal.tokens)

    @property
    def rows(self) -> int:
        """Rows of its pass."""
        return self.state.width + len(self.provisional) + self.proposed

    @property
    def emitted(self) -> int:
        """Final tokens that the step brought; of beams one, as they all go on by one."""
        if self.state.beams is not None:
            return 1
        return len(self.state.output.token_ids) - self.tokens_before

    @property
    def model_tokens(self) -> int:
        """Tokens that a model drafted, those that were not verified included."""
        proposal = self.proposal
        return 0 if self.forced or proposal.match else len(proposal.tokens) + len(proposal.dropped)

    def outcome(self, context: int) -> SequenceOutcome:
        """What a schedule hears of it.

        Args:
            context: tokens of the sequence before the step.
        """
        return SequenceOutcome(
            context, self.proposed, self.accepted, self.proposal.match, self.judged, self.agreed, self.commit
        )

    def count_draft(self, accepted: int, following: int | None) -> None:
        """Note how much of the draft was accepted, wherever that is counted.

        Args:
            accepted: of its tokens.
            following: the target's token behind them; `None` where there was an error.
        """
        proposal, state = self.proposal, self.state
        self.accepted, levels = accepted, proposal.depth
        if not self.forced:
            whole = proposal.parents is None and accepted == levels
            dropped = proposal.dropped[:1] if whole else []
            self.judged, self.agreed = levels + len(dropped), accepted + (dropped == [following])
        if levels:
            state.count_draft(levels, accepted)
            if not self.forced and not proposal.match:
                state.acceptance.observe(levels, accepted)
            state.meter.raw.count_draft(levels, accepted, self.proposed)


@dataclass(slots=True)
class Step:
    """One step; durations in microseconds.

    Attributes:
        requests: those that decode, without those that wait.
        draft_duration: of the drafting round.
        draft_model_duration: the part of it spent inside a model.
        verify_duration: of the pass.
        sampling_duration: of acceptance.
    """

    requests: list[RequestStep]
    draft_duration: float = 0.0
    draft_model_duration: float = 0.0
    verify_duration: float = 0.0
    sampling_duration: float = 0.0

    @property
    def model_duration(self) -> float:
        """Of all models."""
        return self.draft_model_duration + self.verify_duration
