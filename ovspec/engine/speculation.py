"""One step: draft, verify beside chunks of prompts, accept, commit, roll back."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ovspec.drafters.drafter import Drafter, Proposal
from ovspec.engine.accept import accept, accept_tree, next_token
from ovspec.engine.commit import commit, is_due, take_provisional
from ovspec.engine.request import Writer
from ovspec.engine.request_state import RequestState, count_pass
from ovspec.engine.verifier import Verifier
from ovspec.errors import InvalidValueError
from ovspec.runtime.clock import microseconds
from ovspec.runtime.model_runner import ModelRunner
from ovspec.runtime.pass_stats import PassStats
from ovspec.runtime.tables import Rows
from ovspec.schedule.schedule import Plan, Schedule
from ovspec.verify.commit_verify import MAX_INTERVAL
from ovspec.verify.limits import DENSE, MAX_NUM_ASSISTANT_TOKENS, Limits


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of a prompt that a pass reads.

    Attributes:
        state: of the request.
        tokens: how many of its unread tokens, from the first.
    """

    state: RequestState
    tokens: int

    @property
    def ends(self) -> bool:
        """Whether it is the last chunk of a new prompt, which yields the first token."""
        sequence = self.state.sequence
        return sequence.target.length + self.tokens == len(sequence.tokens)

    @property
    def rows(self) -> Rows:
        """The rows of the pass."""
        sequence, begin = self.state.sequence, self.state.sequence.target.length
        tokens = np.array(sequence.tokens[begin : begin + self.tokens], np.int64)
        return Rows(
            sequence.target,
            tokens,
            sampled=int(self.ends),
            text_length=len(sequence.tokens),
            # What a preempted request had written is read again as it was written.
            is_prompt=begin < sequence.prompt_length,
        )


@dataclass(slots=True)
class Step:
    """Result of one step, in the order of its decoding requests.

    Attributes:
        proposed: tokens that were drafted for each request.
        depths: tokens on the longest path of each draft; for a chain, all of its tokens.
        accepted: number of draft tokens that verification accepted, per request.
        matches: length of the match behind each draft of a lookup; 0 of a model.
        judged: tokens of each draft that were compared with the target's own: also the first that was cut
            off, where all before it were accepted.
        held: how many of those were the target's.
        drafted: tokens of each draft, those that were not verified included.
        draft_duration: time of the drafting round in microseconds, like all durations.
        draft_model_duration: the part of it spent inside a model.
        verify_duration: of the pass.
        commit_duration: of the dense passes over provisional tokens; 0 without one.
        commits: per request that committed, its provisional tokens and how many of them were kept.
        sampling_duration: of acceptance.
        passes: of the target, to which the durations belong together; several in plain decoding only.
    """

    proposed: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    matches: list[int] = field(default_factory=list)
    judged: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    draft_duration: float = 0.0
    draft_model_duration: float = 0.0
    verify_duration: float = 0.0
    commit_duration: float = 0.0
    commits: dict[int, tuple[int, int]] = field(default_factory=dict)
    sampling_duration: float = 0.0
    passes: int = 1

    def count(self, proposal: Proposal, accepted: int, following: int | None) -> None:
        """Count the draft of the next request, of which so many tokens were accepted; and what followed."""
        levels, dropped = proposal.depth, proposal.dropped[:1]
        if proposal.parents is not None or accepted < len(proposal.tokens):
            dropped = []
        self.drafted.append(len(proposal.tokens) + len(proposal.dropped))
        self.proposed.append(len(proposal.tokens))
        self.depths.append(levels)
        self.accepted.append(accepted)
        self.matches.append(proposal.match)
        self.judged.append(levels + len(dropped))
        self.held.append(accepted + (dropped == [following]))


class Speculation:
    """Advances requests by one pass, several plain ones, and dense ones where provisional tokens are due.

    Args:
        target: the model whose output is generated.
        drafter: proposes tokens; without one every step is plain decoding.
    """

    def __init__(self, target: ModelRunner, drafter: Drafter | None) -> None:
        self.verifier = Verifier(target, drafter)
        self.drafter = drafter
        #: Time from which on a step of plain passes begins no further one, as `microseconds` counts it.
        self.until = 0.0
        #: Draft tokens of a request that the cache has room for; `None`: any number.
        self.most_draft: int | None = None

    def step(
        self, decoding: SequenceOf[RequestState], plans: SequenceOf[Plan], chunks: SequenceOf[Chunk]
    ) -> Step:
        """Advance every request. Between steps the cache holds all tokens but the last of each sequence.

        Args:
            decoding: requests whose prompts are read.
            plans: what each of them is to do.
            chunks: of prompts, read in the same pass.
        """
        if len(decoding) == 1 and not chunks and self._is_plain(plans[0]):
            step = self._decode_plainly(decoding[0])
            if step.passes:
                return step
        step = Step()
        proposals = self._draft(decoding, plans, step)
        ends = [chunk.state for chunk in chunks if chunk.ends]
        logits, limits = self._verify(decoding, plans, proposals, chunks)
        step.verify_duration = self.verifier.stats.duration
        for index, state in enumerate(decoding):
            if state.request.blocks_read:
                state.output.blocks_read = self.verifier.target.blocks_read(index)
        read = [part for part in logits[len(decoding) :] if len(part)]
        started = microseconds()
        count_pass(self.verifier.stats, decoding, [chunk.state for chunk in chunks])
        for index, (state, proposal, limit) in enumerate(zip(decoding, proposals, limits, strict=True)):
            nodes, following = list[int](), None
            with state.faults():
                nodes, following = self._take(state, proposal, logits[index], limit == DENSE)
                self.verifier.show(index, state.sequence, nodes)
            step.count(proposal, len(nodes), following)
        for index, chunk in enumerate(chunks, len(decoding)):
            with chunk.state.faults():
                self.verifier.show(index, chunk.state.sequence, ())
        for state, rows in zip(ends, read, strict=True):
            with state.faults():
                state.emit([next_token(state.sequence, rows[0])], ["target"], rows, [0])
        step.sampling_duration = microseconds() - started
        due = [i for i, s in enumerate(decoding) if not s.ended and is_due(s, plans[i].commit_interval)]
        if due:
            outcomes, step.commit_duration = commit(self.verifier, [decoding[index] for index in due])
            step.commits = dict(zip(due, outcomes, strict=True))
        return step

    def _verify(
        self,
        decoding: SequenceOf[RequestState],
        plans: SequenceOf[Plan],
        proposals: SequenceOf[Proposal],
        chunks: SequenceOf[Chunk],
    ) -> tuple[list[NDArray[np.float32]], list[Limits]]:
        """Logits of every request and every chunk, and what the requests' rows may read."""
        drafts = [(s.sequence, proposal.tokens) for s, proposal in zip(decoding, proposals, strict=True)]
        if len(drafts) == 1 and not chunks and proposals[0].parents is None:
            logits = self.verifier.verify_next(*drafts[0])
            if logits is not None:
                return [logits], [DENSE]
        limits = [
            self.verifier.limits(
                state.mode.sparse, len(state.sequence.tokens) + len(proposal.tokens), plan.budget_scale
            )
            for state, proposal, plan in zip(decoding, proposals, plans, strict=True)
        ]
        trees = [proposal.parents for proposal in proposals]
        return self.verifier.verify(drafts, limits, trees, [chunk.rows for chunk in chunks]), limits

    def _is_plain(self, plan: Plan) -> bool:
        """Whether nobody drafts, and nobody is shown what the target computes."""
        drafter = self.drafter
        return drafter is None or not (plan.num_assistant_tokens or drafter.reads_states)

    def _decode_plainly(self, state: RequestState) -> Step:
        """Decode the only request by its fixed graph; `passes` is 0 where the graph can't go on.

        The host takes 90 us of an ordinary step, and a pass of a small model 100 to 400.
        """
        sequence, target = state.sequence, self.verifier.target
        step, read = Step([0], [0], [0], [0], [0], [0], [0], passes=0), 0.0
        while not (step.passes and microseconds() >= self.until) and not sequence.finished:
            if (found := target.forward_next(sequence.target, sequence.tokens[-1:])) is None:
                break
            started, (logits, duration) = microseconds(), found
            step.passes += 1
            step.verify_duration += duration
            read += sequence.target.length
            state.emit([next_token(sequence, logits[0])], ["target"], logits, [0])
            step.sampling_duration += microseconds() - started
        if step.passes:
            count_pass(PassStats(attended=((read, read),), prompts=((0.0, 0.0),)), [state])
        return step

    def _draft(
        self, decoding: SequenceOf[RequestState], plans: SequenceOf[Plan], step: Step
    ) -> list[Proposal]:
        counts = [
            max(0, min(plan.num_assistant_tokens, self.room(state)))
            for state, plan in zip(decoding, plans, strict=True)
        ]
        if self.drafter is None or not any(counts):
            return [Proposal() for _ in decoding]
        started = microseconds()
        asks = [
            None if plan.model is None else plan.model._replace(tokens=min(plan.model.tokens, count))
            for plan, count in zip(plans, counts, strict=True)
        ]
        proposals = self.drafter.propose([state.sequence for state in decoding], counts, asks)
        drop_unlikely(proposals, [state.schedule for state in decoding])
        step.draft_duration = microseconds() - started
        step.draft_model_duration = self.drafter.last_duration
        return proposals

    def check_trees(self, levels: int) -> None:
        """Refuse draft trees of so many levels, if there are any.

        Raises:
            InvalidValueError: nobody can draft or verify them; it says why.
        """
        if not levels or self.drafter is None:
            return
        if reason := self.drafter.why_no_trees:
            raise InvalidValueError(
                f"tree_depth={levels}: drafter {self.drafter.name!r} can't draft trees: {reason}; leave it "
                "out, or take a draft model or a head"
            )
        if reason := self.verifier.target.why_no_trees:
            raise InvalidValueError(f"tree_depth={levels}: the target can't verify trees: {reason}")

    def room(self, state: RequestState) -> int:
        """Largest useful draft; the pass itself yields one more token."""
        sequence, long_rope = state.sequence, self.verifier.target.long_rope
        limits = [sequence.remaining - 1]
        if sequence.settings.tree_depth and sequence.remaining > 1:
            limits = [MAX_NUM_ASSISTANT_TOKENS]  # the drafter bounds the depth
        if self.most_draft is not None:
            limits.append(self.most_draft)
        if long_rope and (room := long_rope.room(len(sequence.tokens))) is not None:
            limits.append(room)
        if state.mode.commits:  # at most what one commit can verify
            limits.append(MAX_INTERVAL - 1 - len(sequence.provisional))
        if sequence.settings.num_assistant_tokens_schedule == "auto" and state.request.schedule is None:
            limits.append(sequence.settings.num_assistant_tokens)
        return min(limits)

    def _take(
        self, state: RequestState, proposal: Proposal, logits: NDArray[np.float32], dense: bool
    ) -> tuple[list[int], int]:
        """Accept what verification lets stand, as final tokens or as provisional ones.

        Returns:
            The accepted nodes, and the target's token behind them.
        """
        sequence, parents = state.sequence, proposal.parents
        if parents is None:
            accepted = accept(sequence, proposal, logits)
            nodes, last = list(range(accepted.n)), accepted.next_token
        else:
            path = accept_tree(sequence, proposal, parents, logits)
            self.verifier.keep(sequence, path.nodes)
            nodes, last = path.nodes, path.next_token
        if levels := proposal.depth:
            state.count_draft(levels, len(nodes))
            state.acceptance.observe(levels, len(nodes))
        tokens = [*(proposal.tokens[node] for node in nodes), last]
        whole = _ends_draft(nodes, proposal)
        writers: list[Writer] = ["draft" for _ in nodes]
        writers.append("target" if whole else "corrected")
        if state.mode.commits and not (dense and not sequence.provisional):
            take_provisional(state, tokens, writers)
        else:
            state.emit(tokens, writers, logits, [0, *(node + 1 for node in nodes)])
        return nodes, last


def drop_unlikely(proposals: SequenceOf[Proposal], schedules: SequenceOf[Schedule]) -> None:
    """Drop tokens that the schedules do not verify; the drafts of one schedule are judged together."""
    drafted: dict[int, list[float]] = {}
    for schedule, proposal in zip(schedules, proposals, strict=True):
        if proposal.match and proposal.tokens:
            proposal.confidences = schedule.likely(proposal.match, len(proposal.tokens))
        drafted.setdefault(id(schedule), []).extend(proposal.confidences or ())
    for schedule, proposal in zip(schedules, proposals, strict=True):
        if proposal.confidences:
            proposal.drop_unlikely(schedule.least_confidence(drafted[id(schedule)]))


def _ends_draft(nodes: list[int], proposal: Proposal) -> bool:
    """Whether the accepted path goes to the end of a draft, so that no draft token was rejected after it."""
    last = nodes[-1] if nodes else -1
    if proposal.parents is None:
        return last == len(proposal.tokens) - 1
    return last not in proposal.parents
