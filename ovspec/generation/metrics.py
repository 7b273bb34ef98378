"""Metrics of one `generate` call, with openvino_genai's names."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from itertools import zip_longest

from openvino_genai.py_openvino_genai import SummaryStats

from ovspec.devices.clock import microseconds
from ovspec.generation.model_metrics import MeanStdPair, ModelPerfMetrics


@dataclass(slots=True)
class RawPerfMetrics:
    """Raw measurements, one entry per event. Times are in microseconds, as in openvino_genai.

    Attributes:
        m_times_to_first_token: per sequence, from the call to its first token.
        m_durations: per token after a sequence's first, its share of the step that emitted it.
        inference_durations: model time of the whole call, target and draft.
        verify_durations: per verification pass of the target.
        draft_durations: per drafting round, in models and outside them.
        commit_durations: per dense pass that verified provisional tokens.
        host_durations: per step, everything outside the models.
        token_infer_durations: per token, model time of the step that emitted it, shared among its tokens.
        m_new_token_times: per token, when it was emitted (`microseconds`).
        m_batch_sizes: per token, sequences of the step that emitted it.
        prepare_embeddings_durations: per call, what reading its pictures took.
        grammar_compile_times: empty: what a grammar takes is not measured.
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


def _share(read: float, held: float) -> float:
    return read / held if held else 1.0


@dataclass(slots=True)
class PerfMetrics:
    """Metrics of one call, or of several added up; getters give milliseconds unless said otherwise.

    Getters carry openvino_genai's names. Those of speculative decoding follow vLLM's definitions.

    Attributes:
        why_lossy: why the output may differ from the model's own; empty if it cannot.
        identity_breakers: why the output may still differ from plain decoding's, in its last bits and so in
            a token, or in the random numbers that it takes; a sentence each, empty where it is promised to be
            identical.
    """

    load_time: float = 0.0
    num_generated_tokens: int = 0
    num_input_tokens: int = 0
    raw_metrics: RawPerfMetrics = field(default_factory=RawPerfMetrics)
    why_lossy: str = ""
    identity_breakers: tuple[str, ...] = ()

    def __add__(self, other: PerfMetrics) -> PerfMetrics:
        """Metrics of two calls of one pipeline together."""
        return PerfMetrics(
            self.load_time,
            self.num_generated_tokens + other.num_generated_tokens,
            self.num_input_tokens + other.num_input_tokens,
            self.raw_metrics.joined(other.raw_metrics),
            "; ".join(dict.fromkeys(reason for reason in (self.why_lossy, other.why_lossy) if reason)),
            tuple(dict.fromkeys((*self.identity_breakers, *other.identity_breakers))),
        )

    def get_load_time(self) -> float:
        """Time to load the pipeline."""
        return self.load_time

    def get_num_generated_tokens(self) -> int:
        """Tokens emitted, over all sequences."""
        return self.num_generated_tokens

    def get_num_input_tokens(self) -> int:
        """Prompt tokens, over all sequences."""
        return self.num_input_tokens

    def get_ttft(self) -> MeanStdPair:
        """Time to first token."""
        return MeanStdPair.of(self.raw_metrics.m_times_to_first_token)

    def get_tpot(self) -> MeanStdPair:
        """Time per output token after the first."""
        return MeanStdPair.of(self.raw_metrics.m_durations)

    def get_ipot(self) -> MeanStdPair:
        """Inference time per output token."""
        if not self.num_generated_tokens:
            return MeanStdPair(-1.0, -1.0)
        return MeanStdPair(self.get_inference_duration().mean / self.num_generated_tokens, 0.0)

    def get_throughput(self) -> MeanStdPair:
        """Tokens per second after the first token."""
        tpot = self.get_tpot()
        if tpot.mean <= 0.0:
            return MeanStdPair(-1.0, -1.0)
        return MeanStdPair(1000.0 / tpot.mean, 1000.0 * tpot.std / tpot.mean**2)

    def get_generate_duration(self) -> MeanStdPair:
        """Duration of the call."""
        return MeanStdPair.of(self.raw_metrics.generate_durations)

    def get_inference_duration(self) -> MeanStdPair:
        """Time inside the models, target and draft."""
        return MeanStdPair(sum(self.raw_metrics.inference_durations) / 1e3, 0.0)

    def get_sampling_duration(self) -> MeanStdPair:
        """Time of sampling and acceptance, per step."""
        return MeanStdPair.of(self.raw_metrics.sampling_durations)

    def get_tokenization_duration(self) -> MeanStdPair:
        """Time of tokenization."""
        return MeanStdPair.of(self.raw_metrics.tokenization_durations)

    def get_detokenization_duration(self) -> MeanStdPair:
        """Time of detokenization."""
        return MeanStdPair.of(self.raw_metrics.detokenization_durations)

    def get_chat_template_duration(self) -> MeanStdPair:
        """Time of applying the chat template."""
        return MeanStdPair.of(self.raw_metrics.chat_template_durations)

    def get_prepare_embeddings_duration(self) -> MeanStdPair:
        """Time of reading pictures."""
        return MeanStdPair.of(self.raw_metrics.prepare_embeddings_durations)

    def get_grammar_compile_time(self) -> SummaryStats:
        """What grammars take is not measured: empty."""
        return SummaryStats()

    def get_grammar_compiler_init_times(self) -> dict[str, float]:
        """What grammars take is not measured: empty."""
        return {}

    def get_num_draft_tokens(self) -> int:
        """Draft tokens that were verified."""
        return sum(self.raw_metrics.proposed)

    def get_num_accepted_tokens(self) -> int:
        """Draft tokens that were accepted."""
        return sum(self.raw_metrics.accepted)

    def get_num_rejected_tokens(self) -> int:
        """Draft tokens that were verified and not accepted."""
        return self.get_num_draft_tokens() - self.get_num_accepted_tokens()

    def get_draft_acceptance_rate(self) -> float:
        """The same as `get_acceptance_rate`, under openvino_genai's name."""
        return self.get_acceptance_rate()

    @property
    def main_model_metrics(self) -> ModelPerfMetrics:
        """Of the target's passes alone."""
        raw = self.raw_metrics
        passes = raw.verify_durations + raw.commit_durations
        return ModelPerfMetrics(raw.prefill_durations, passes, self.num_generated_tokens)

    @property
    def draft_model_metrics(self) -> ModelPerfMetrics:
        """Of the drafting rounds alone."""
        return ModelPerfMetrics([], self.raw_metrics.draft_durations, self.get_num_draft_tokens())

    def get_draft_to_main_inference_duration_ratio(self) -> float:
        """Time of drafting over that of the target; 0.0 before a target has run."""
        main = self.main_model_metrics.get_inference_duration().mean
        return self.draft_model_metrics.get_inference_duration().mean / main if main else 0.0

    def get_mean_acceptance_length(self) -> float:
        """Tokens emitted per verified draft, 1 + accepted / drafts; 1.0 when nothing was drafted."""
        raw = self.raw_metrics
        return 1.0 + sum(raw.accepted) / raw.num_drafts if raw.num_drafts else 1.0

    def get_acceptance_rate(self) -> float:
        """Share of the proposed draft tokens that were accepted; 0.0 when nothing was drafted."""
        raw = self.raw_metrics
        return sum(raw.accepted) / sum(raw.proposed) if raw.num_drafts else 0.0

    def get_acceptance_rate_per_position(self) -> list[float]:
        """Entry i: share of the drafts whose token i was accepted."""
        raw = self.raw_metrics
        return [accepted / raw.num_drafts for accepted in raw.accepted]

    def get_num_assistant_tokens(self) -> float:
        """Mean number of draft tokens that the schedule asked for, over all steps; 0.0 without steps."""
        asked = self.raw_metrics.num_assistant_tokens
        return sum(asked) / len(asked) if asked else 0.0

    def get_drafting_share(self) -> float:
        """Share of the steps in which the schedule asked for a draft; 0.0 without steps."""
        asked = self.raw_metrics.num_assistant_tokens
        return sum(number > 0 for number in asked) / len(asked) if asked else 0.0

    def get_draft_duration(self) -> MeanStdPair:
        """Time of one drafting round."""
        return MeanStdPair.of(self.raw_metrics.draft_durations)

    def get_verify_duration(self) -> MeanStdPair:
        """Time of one verification pass of the target."""
        return MeanStdPair.of(self.raw_metrics.verify_durations)

    def get_num_commits(self) -> int:
        """Number of dense passes over provisional tokens."""
        return len(self.raw_metrics.commit_durations)

    def get_num_provisional_tokens(self) -> int:
        """Provisional tokens that a dense pass verified."""
        return sum(self.raw_metrics.provisional_lengths)

    def get_num_confirmed_tokens(self) -> int:
        """Provisional tokens that a dense pass confirmed."""
        return sum(self.raw_metrics.confirmed_lengths)

    def get_commit_duration(self) -> MeanStdPair:
        """Time of one dense pass over provisional tokens."""
        return MeanStdPair.of(self.raw_metrics.commit_durations)

    def get_host_duration(self) -> MeanStdPair:
        """Time of one step outside the models."""
        return MeanStdPair.of(self.raw_metrics.host_durations)

    def get_attention_density(self) -> float:
        """Share of the context's cache bytes that verification attention read; 1.0 when dense."""
        return _share(self.raw_metrics.attended_tokens, self.raw_metrics.context_tokens)

    def get_prefill_density(self) -> float:
        """Share of the context that prompts read while they were read; 1.0 when dense."""
        return _share(self.raw_metrics.prompt_attended_tokens, self.raw_metrics.prompt_context_tokens)

    def get_expert_density(self) -> float:
        """Share of the layers' experts that verification read; 1.0 without a budget."""
        return _share(self.raw_metrics.experts_read, self.raw_metrics.experts_held)

    def get_ffn_density(self) -> float:
        """Share of the feed-forward channels that verification read; 1.0 without a limit."""
        return _share(self.raw_metrics.channels_read, self.raw_metrics.channels_held)

    def get_experts_read(self) -> float:
        """Mean number of experts of a layer that a verification pass read; 0.0 without a budget."""
        raw = self.raw_metrics
        return raw.experts_read / raw.expert_layers if raw.expert_layers else 0.0

    def summary(self) -> dict[str, object]:
        """The figures as plain JSON values."""
        return {
            "num_input_tokens": self.num_input_tokens,
            "num_generated_tokens": self.num_generated_tokens,
            "load_time_ms": self.load_time,
            "ttft_ms": self.get_ttft().mean,
            "tpot_ms": self.get_tpot().mean,
            "throughput_tokens_per_s": self.get_throughput().mean,
            "generate_ms": self.get_generate_duration().mean,
            "draft_ms": self.get_draft_duration().mean,
            "verify_ms": self.get_verify_duration().mean,
            "host_ms": self.get_host_duration().mean,
            "mean_acceptance_length": self.get_mean_acceptance_length(),
            "acceptance_rate": self.get_acceptance_rate(),
            "acceptance_rate_per_position": self.get_acceptance_rate_per_position(),
            "num_assistant_tokens": self.get_num_assistant_tokens(),
            "drafting_share": self.get_drafting_share(),
            "attention_density": self.get_attention_density(),
            "prefill_density": self.get_prefill_density(),
            "expert_density": self.get_expert_density(),
            "experts_read": self.get_experts_read(),
            "ffn_density": self.get_ffn_density(),
            "commits": self.get_num_commits(),
            "commit_ms": self.get_commit_duration().mean,
            "num_provisional_tokens": self.get_num_provisional_tokens(),
            "num_confirmed_tokens": self.get_num_confirmed_tokens(),
            "why_lossy": self.why_lossy or None,
            "identity_breakers": list(self.identity_breakers),
        }
