"""Raw measurements of one `generate` call, with openvino_genai's names."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from itertools import zip_longest

from ovspec.devices.clock import microseconds


@dataclass(slots=True)
class RawPerfMetrics:
    """Raw measurements, one entry per event. Times are in microseconds, as in openvino_genai.

    Attributes:
        m_times_to_first_token: per sequence, from the call to its first token.
        m_durations: per token after a sequence's first, its share of the step that emitted it.
        inference_durations: model time of the whole call, target and draft.
        verify_durations: per verification pass of the target, commits left out.
        draft_durations: per drafting round, in models and outside them.
        commit_durations: per pass that verified provisional tokens, densely, and drafts behind them.
        host_durations: per step, everything outside the models.
        token_infer_durations: per token, model time of the step that emitted it, shared among its tokens.
        m_new_token_times: per token, when it was emitted (`microseconds`).
        m_batch_sizes: per token, sequences of the step that emitted it.
        prepare_embeddings_durations: per call, what reading its pictures took.
        grammar_compile_times: what making the grammar ready took, where the call has one.
        proposed: draft tokens proposed at each position.
        accepted: draft tokens accepted at each position.
        num_drafts: drafting rounds that were verified.
        proposed_lengths: tokens of each draft that was verified; of a tree, those on its longest path.
        drafted_nodes: all tokens of each draft.
        accepted_lengths: how many of them were accepted.
        num_assistant_tokens: per step, the draft tokens that the schedule asked for.
        provisional_lengths: per commit, the provisional tokens that its dense pass verified.
        confirmed_lengths: how many of them it confirmed.
        attended_tokens: context tokens that verification attention read, over layers and KV heads.
        context_tokens: context tokens that dense attention would have read.
        prompt_attended_tokens: context tokens that the rows of prompts read, over these rows.
        prompt_context_tokens: context tokens that dense attention would have read for them.
        sparse_cached_tokens: tokens of prompts that a cache held, and that were read sparsely before.
        experts_read: experts that limited models read in verification passes, over their layers.
        experts_held: all experts of those layers, counted once per pass.
        expert_layers: number of such layers, counted once per pass.
        channels_read: feed-forward channels that limited models read in verification passes.
        channels_held: all channels of those layers, counted once per pass.
    """

    generate_durations: list[float] = field(default_factory=list)
    tokenization_durations: list[float] = field(default_factory=list)
    detokenization_durations: list[float] = field(default_factory=list)
    chat_template_durations: list[float] = field(default_factory=list)
    prepare_embeddings_durations: list[float] = field(default_factory=list)
    m_times_to_first_token: list[float] = field(default_factory=list)
    m_durations: list[float] = field(default_factory=list)
    inference_durations: list[float] = field(default_factory=list)
    sampling_durations: list[float] = field(default_factory=list)
    token_infer_durations: list[float] = field(default_factory=list)
    m_new_token_times: list[float] = field(default_factory=list)
    m_batch_sizes: list[int] = field(default_factory=list)
    grammar_compile_times: list[float] = field(default_factory=list)
    prefill_durations: list[float] = field(default_factory=list)
    verify_durations: list[float] = field(default_factory=list)
    draft_durations: list[float] = field(default_factory=list)
    commit_durations: list[float] = field(default_factory=list)
    host_durations: list[float] = field(default_factory=list)
    proposed: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    num_drafts: int = 0
    proposed_lengths: list[int] = field(default_factory=list)
    drafted_nodes: list[int] = field(default_factory=list)
    accepted_lengths: list[int] = field(default_factory=list)
    num_assistant_tokens: list[int] = field(default_factory=list)
    provisional_lengths: list[int] = field(default_factory=list)
    confirmed_lengths: list[int] = field(default_factory=list)
    attended_tokens: float = 0.0
    context_tokens: float = 0.0
    prompt_attended_tokens: float = 0.0
    prompt_context_tokens: float = 0.0
    sparse_cached_tokens: int = 0
    experts_read: int = 0
    experts_held: int = 0
    expert_layers: int = 0
    channels_read: int = 0
    channels_held: int = 0

    @property
    def left_nothing_out(self) -> bool:
        """Whether verification ran and read all of the context and of the weights: the model's own output."""
        whole = self.attended_tokens >= self.context_tokens * (1.0 - 1e-9) > 0.0
        return whole and not self.experts_held and self.channels_read == self.channels_held

    @property
    def read_whole_prompts(self) -> bool:
        """Whether every row of a prompt read all of its context."""
        whole = self.prompt_attended_tokens >= self.prompt_context_tokens * (1.0 - 1e-9)
        return whole and not self.sparse_cached_tokens

    def count_tokens(self, emitted: int, batch_size: int) -> None:
        """Record the number of tokens that the last measured pass emitted."""
        share = self.inference_durations[-1] * batch_size / max(1, emitted)
        self.token_infer_durations.extend([share] * emitted)
        self.m_new_token_times.extend([microseconds()] * emitted)
        self.m_batch_sizes.extend([batch_size] * emitted)

    def count_draft(self, proposed: int, accepted: int, nodes: int) -> None:
        """Record one verified draft.

        Args:
            proposed: its tokens; of a tree, those on its longest path.
            accepted: how many of a path's tokens were kept.
            nodes: all of its tokens.
        """
        if proposed == 0:
            return
        self.num_drafts += 1
        self.proposed_lengths.append(proposed)
        self.drafted_nodes.append(nodes)
        self.accepted_lengths.append(accepted)
        for counts, number in ((self.proposed, proposed), (self.accepted, accepted)):
            counts.extend([0] * (proposed - len(counts)))
            for position in range(number):
                counts[position] += 1

    def joined(self, other: RawPerfMetrics) -> RawPerfMetrics:
        """The events of both."""
        joined = RawPerfMetrics()
        for entry in fields(self):
            mine, theirs = getattr(self, entry.name), getattr(other, entry.name)
            setattr(joined, entry.name, mine + theirs)
        for name in ("proposed", "accepted"):
            pairs = zip_longest(getattr(self, name), getattr(other, name), fillvalue=0)
            setattr(joined, name, [a + b for a, b in pairs])
        return joined
