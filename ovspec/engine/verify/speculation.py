"""One step: draft, verify beside chunks of prompts, accept or confirm, roll back."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np

from ovspec.devices.clock import microseconds
from ovspec.drafters.drafter import Drafter, Proposal
from ovspec.engine.requests.request import Writer
from ovspec.engine.requests.request_state import RequestState, count_pass
from ovspec.engine.requests.request_step import RequestStep, Step
from ovspec.engine.verify.accept import accept, accept_tree, next_token
from ovspec.engine.verify.commit import give_back, has_ended, take_back, take_provisional
from ovspec.engine.verify.verifier import Draft, Verification, Verified, Verifier
from ovspec.errors import InvalidValueError
from ovspec.modes.commit_verify import MAX_INTERVAL
from ovspec.modes.row_limits import DENSE, MAX_NUM_ASSISTANT_TOKENS
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner
from ovspec.schedule.schedule import Schedule


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
            sampled=self.tokens if self.state.wants_prompt_logprobs else int(self.ends),
            text_length=len(sequence.tokens),
            # What a preempted request had written is read again as it was written.
            is_prompt=begin < sequence.prompt_length,
        )


class Speculation:
    """Advances requests by one pass, a dense one where provisional tokens are due.

    Args:
        target: the model whose output is generated.
        drafter: proposes tokens; without one every step is plain decoding.
    """

    def __init__(self, target: ModelRunner, drafter: Drafter | None) -> None:
        self.verifier = Verifier(target, drafter)
        self.drafter = drafter

    def step(self, requests: list[RequestStep], chunks: SequenceOf[Chunk], most_draft: int | None) -> Step:
        """Advance every request. Between steps the cache holds all tokens but the last of each sequence.

        Args:
            requests: whose prompts are read, planned.
            chunks: of prompts, read in the same pass.
            most_draft: draft tokens of a request that the cache has room for; `None`: any number.
        """
        step = Step(requests)
        self._draft(step, most_draft)
        last = [chunk.ends for chunk in chunks]
        advanced = take_back(requests)
        step.requests = [request for request in requests if not request.waits]
        if not (advanced or chunks):
            return step
        try:
            found, drafts = self._verify(advanced, chunks)
        except BaseException:
            give_back(advanced)
            raise
        step.verify_duration = found.stats.duration
        started = microseconds()
        count_pass(
            found.stats,
            [request.state for request, own in zip(advanced, drafts, strict=True) for _ in own],
            [chunk.state for chunk in chunks],
        )
        index = 0
        for request, asked in zip(advanced, drafts, strict=True):
            state, parts = request.state, found.parts[index : index + len(asked)]
            if state.request.blocks_read:
                state.output.blocks_read = found.result.blocks_read(index)
            with state.faults():
                if state.beams is not None:
                    state.search([own.logits[-1] for own in parts])
                else:
                    self._take(request, parts[0], asked[0].limits == DENSE)
            index += len(asked)
        for chunk, own, ends in zip(chunks, found.parts[index:], last, strict=True):
            with chunk.state.faults():
                self._read(chunk.state, own, ends)
        step.sampling_duration = microseconds() - started
        return step

    def _verify(
        self, requests: SequenceOf[RequestStep], chunks: SequenceOf[Chunk]
    ) -> tuple[Verification, list[list[Draft]]]:
        """One pass over all drafts, those of a request together, and over chunks of prompts."""
        drafts = []
        for request in requests:
            state, draft = request.state, request.draft
            # Nothing confirms what beams have read sparsely.
            dense = request.plan.commit_interval == 0 or (state.beams is not None and state.mode.commits)
            context = len(state.sequences[0].tokens) + len(draft.tokens)
            sparse = None if dense or request.provisional else state.mode.sparse
            limits = self.verifier.target.limits(sparse, context)
            drafts.append([Draft(one, draft.tokens, limits, draft.parents) for one in state.sequences])
        together = [draft for own in drafts for draft in own]
        return self.verifier.verify(together, [chunk.rows for chunk in chunks]), drafts

    def _read(self, state: RequestState, own: Verified, ends: bool) -> None:
        """Take what a pass says of a chunk of a prompt; behind its last one comes the first token."""
        if state.beams is None:
            self.verifier.show(state.sequence, own, ())
        state.take_prompt(own.begin, own.logits)
        if ends and state.beams is not None:
            state.search([own.logits[-1]])
        elif ends:
            state.emit([next_token(state.sequence, own.logits[-1])], ["target"], own.logits[-1:], [0])

    def _draft(self, step: Step, most_draft: int | None) -> None:
        """What a request's grammar forces is its draft; the drafter is asked for the others'."""
        counts = list[int]()
        requests = [request for request in step.requests if request.state.beams is None]
        for request in requests:
            ended = has_ended(request.state)
            if not ended:
                self._force(request, most_draft)
            asked = 0 if request.forced or ended else request.plan.num_assistant_tokens
            counts.append(max(0, min(asked, self.room(request.state, most_draft))) if asked else 0)
        if self.drafter is None or not any(counts):
            return
        started = microseconds()
        asks = [
            None if (ask := request.plan.model) is None else ask._replace(tokens=min(ask.tokens, count))
            for request, count in zip(requests, counts, strict=True)
        ]
        proposals = self.drafter.propose([request.state.sequence for request in requests], counts, asks)
        for request, proposal in zip(requests, proposals, strict=True):
            if request.forced:
                continue
            request.proposal = proposal
            with request.state.faults():
                proposal.cut(request.state.sequence)
        drop_unlikely(requests)
        step.draft_duration = microseconds() - started
        step.draft_model_duration = self.drafter.last_duration

    def _force(self, request: RequestStep, most_draft: int | None) -> None:
        """Draft what the request's grammar leaves no choice about, which costs nothing."""
        state = request.state
        constraint = state.sequence.processor.constraint
        if constraint is None:
            return
        room = min(self._most(state, most_draft), state.sequence.remaining - 1, MAX_NUM_ASSISTANT_TOKENS)
        with state.faults():
            request.proposal.tokens = constraint.forced()[: max(0, room)]
            request.forced = bool(request.proposal.tokens)

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

    def reads_all(self, state: RequestState) -> bool:
        """Whether the next pass reads all of a request's context, as its budget is configured."""
        return self.verifier.target.limits(state.mode.sparse, len(state.sequence.tokens)) == DENSE

    def room(self, state: RequestState, most_draft: int | None) -> int:
        """Largest useful draft of the drafter; the pass itself yields one more token.

        Args:
            state: of the request.
            most_draft: as of `step`.
        """
        settings, limits = state.sequence.settings, [self._most(state, most_draft)]
        if settings.num_assistant_tokens_schedule == "auto" and state.request.schedule is None:
            limits.append(settings.num_assistant_tokens)
        return min(limits)

    def _most(self, state: RequestState, most_draft: int | None) -> int:
        """Draft tokens that a pass has room for, whoever drafts them."""
        sequence, long_rope = state.sequence, self.verifier.target.long_rope
        limits = [sequence.remaining - 1]
        if sequence.settings.tree_depth and sequence.remaining > 1:
            limits = [MAX_NUM_ASSISTANT_TOKENS]  # the drafter bounds the depth
        if most_draft is not None:
            limits.append(most_draft)
        if long_rope and (room := long_rope.room(len(sequence.tokens))) is not None:
            limits.append(room)
        if state.mode.commits:  # at most what one commit can verify
            limits.append(MAX_INTERVAL - 1 - sequence.provisional)
        return min(limits)

    def _take(self, request: RequestStep, own: Verified, dense: bool) -> None:
        """Accept what verification lets stand, as final tokens or as provisional ones."""
        state, confirming = request.state, len(request.provisional)
        sequence, draft = state.sequence, request.draft
        if draft.parents is None:
            accepted = accept(sequence, draft, own.logits)
            nodes, last = list(range(accepted.n)), accepted.next_token
        else:
            path = accept_tree(sequence, draft, draft.parents, own.logits)
            self.verifier.keep(sequence, path.nodes)
            nodes, last = path.nodes, path.next_token
        tokens = [*(draft.tokens[node] for node in nodes), last]
        writers: list[Writer] = ["draft" for _ in nodes]
        writers.append("target" if _ends_draft(nodes, draft) else "corrected")
        if confirming:
            kept = min(confirming, len(nodes))
            writers[:kept], state.provisional_writers = state.provisional_writers[:kept], []
            request.commit = confirming, kept
        if state.mode.commits and not (dense and not sequence.provisional):
            take_provisional(state, tokens, writers)
        else:
            state.emit(tokens, writers, own.logits, [0, *(node + 1 for node in nodes)])
        self.verifier.show(sequence, own, nodes)
        if len(nodes) >= confirming:  # else the draft was not reached
            request.count_draft(len(nodes) - confirming, last)


def drop_unlikely(requests: SequenceOf[RequestStep]) -> None:
    """Drop tokens that the schedules do not verify; the drafts of one schedule are judged together.

    Tokens drawn for block verification stay: a head's confidence depends on them, and the exact rule allows
    a draft's length to depend on its tokens only as long as none is taken back.
    """
    drafted: dict[Schedule, list[float]] = {}
    requests = [
        request for request in requests if not request.proposal.is_drawn_for_blocks(request.state.sequence)
    ]
    for request in requests:
        proposal, schedule = request.proposal, request.state.schedule
        if proposal.match and proposal.tokens:
            proposal.confidences = schedule.likely(proposal.match, len(proposal.tokens))
        drafted.setdefault(schedule, []).extend(proposal.confidences or ())
    least = {schedule: schedule.least_confidence(found) for schedule, found in drafted.items() if found}
    for request in requests:
        if request.proposal.confidences:
            request.proposal.drop_unlikely(least[request.state.schedule])


def _ends_draft(nodes: list[int], proposal: Proposal) -> bool:
    """Whether the accepted path goes to the end of a draft, so that no draft token was rejected after it."""
    last = nodes[-1] if nodes else -1
    if proposal.parents is None:
        return last == len(proposal.tokens) - 1
    return last not in proposal.parents
