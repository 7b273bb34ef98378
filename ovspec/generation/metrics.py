"""Metrics of one `generate` call, with openvino_genai's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ovspec.generation.model_metrics import MeanStdPair, ModelPerfMetrics, Summary
from ovspec.generation.raw_metrics import RawPerfMetrics


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
        grammar_compiler_init_times: milliseconds that a compiler of grammars took for the vocabulary.
    """

    load_time: float = 0.0
    num_generated_tokens: int = 0
    num_input_tokens: int = 0
    raw_metrics: RawPerfMetrics = field(default_factory=RawPerfMetrics)
    why_lossy: str = ""
    identity_breakers: tuple[str, ...] = ()
    grammar_compiler_init_times: Mapping[str, float] = field(default_factory=dict)

    def __add__(self, other: PerfMetrics) -> PerfMetrics:
        """Metrics of two calls of one pipeline together."""
        return PerfMetrics(
            self.load_time,
            self.num_generated_tokens + other.num_generated_tokens,
            self.num_input_tokens + other.num_input_tokens,
            self.raw_metrics.joined(other.raw_metrics),
            "; ".join(dict.fromkeys(reason for reason in (self.why_lossy, other.why_lossy) if reason)),
            tuple(dict.fromkeys((*self.identity_breakers, *other.identity_breakers))),
            {**other.grammar_compiler_init_times, **self.grammar_compiler_init_times},
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

    def get_ttst(self) -> MeanStdPair:
        """Time of the second token after the first."""
        return MeanStdPair.of(self.raw_metrics.m_durations[:1])

    def get_latency(self) -> MeanStdPair:
        """Time of one pass of the target after the prompt."""
        return self.main_model_metrics.get_latency()

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

    def get_grammar_compile_time(self) -> Summary:
        """Time of making the call's grammar ready; short where an earlier call has used it."""
        return Summary.of(self.raw_metrics.grammar_compile_times)

    def get_grammar_compiler_init_times(self) -> dict[str, float]:
        """Time that llguidance took for the vocabulary, under its name; empty before any grammar."""
        return dict(self.grammar_compiler_init_times)

    def get_num_draft_tokens(self) -> int:
        """Draft tokens that were verified."""
        return sum(self.raw_metrics.proposed)

    def get_num_accepted_tokens(self) -> int:
        """Draft tokens that were accepted."""
        return sum(self.raw_metrics.accepted)

    def get_num_rejected_tokens(self) -> int:
        """Draft tokens that were verified and not accepted."""
        return self.get_num_draft_tokens() - self.get_num_accepted_tokens()

    def get_num_draft_processed_tokens(self) -> int:
        """Tokens of drafts that were verified; of trees, those of all branches."""
        return sum(self.raw_metrics.drafted_nodes)

    def get_draft_processed_to_candidate_ratio(self) -> float:
        """Those over the draft tokens of the longest paths; 0.0 when nothing was drafted."""
        candidates = self.get_num_draft_tokens()
        return self.get_num_draft_processed_tokens() / candidates if candidates else 0.0

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
        rounds = self.raw_metrics.draft_durations
        return ModelPerfMetrics(rounds[:1], rounds[1:], self.get_num_draft_processed_tokens())

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
        """Time of one verification pass of the target, commits left out."""
        return MeanStdPair.of(self.raw_metrics.verify_durations)

    def get_num_commits(self) -> int:
        """Number of passes that verified provisional tokens, densely."""
        return len(self.raw_metrics.commit_durations)

    def get_num_provisional_tokens(self) -> int:
        """Provisional tokens that a dense pass verified."""
        return sum(self.raw_metrics.provisional_lengths)

    def get_num_confirmed_tokens(self) -> int:
        """Provisional tokens that a dense pass confirmed."""
        return sum(self.raw_metrics.confirmed_lengths)

    def get_commit_duration(self) -> MeanStdPair:
        """Time of one pass that verified provisional tokens, and drafts behind them."""
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
