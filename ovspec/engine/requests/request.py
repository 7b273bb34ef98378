"""Requests of an engine, and what it gives back for them step by step."""

from __future__ import annotations

import time
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import Literal

from openvino_genai import GenerationFinishReason

from ovspec.cache.cache import CachedSequence
from ovspec.cache.visual_prompt import VisualPrompt
from ovspec.generation.detokenizer import IncrementalDetokenizer
from ovspec.generation.generation_config import GenerationSettings
from ovspec.generation.raw_metrics import RawPerfMetrics
from ovspec.modes.verify_mode import VerifyMode
from ovspec.schedule.schedule import Schedule

Writer = Literal["draft", "target", "corrected"]
"""Who wrote a token: an accepted draft, the target itself, or the target in place of a rejected draft."""


@dataclass(slots=True)
class Request:
    """A prompt to answer.

    Attributes:
        request_id: names the request; no two that run may share it.
        prompt_token_ids: the prompt.
        settings: how to answer it.
        verify: how the target verifies its drafts; `None`: as the engine's other requests.
        logprobs: how many of the most probable tokens to give the log probabilities of, beside that of the
            token itself; `None`: no log probabilities.
        prompt_logprobs: the same for the tokens of the prompt; its beginning is then read anew, whatever the
            cache has of it.
        visual: what pictures bring to the prompt; `None`: it has none.
        arrival_time: `time.perf_counter()` when it came.
        index: of several answers to one prompt; each has random numbers of its own.
        schedule: decides how much is drafted; `None`: what the settings ask for.
        metrics: what its passes are counted in; requests of one call may share them.
        cached: blocks in the target's and the draft's cache that hold the beginning of the prompt. They
            belong to the caller, who releases them.
        blocks_read: whether outputs say which blocks of the context were read.
        answered: what an engine answered that has ended since; the answer goes on behind it.
        reports_reading: whether outputs come while its prompt is read, without tokens.
        detokenizer: of an answer before its first token: beams end at its stop strings.
    """

    request_id: str
    prompt_token_ids: SequenceOf[int]
    settings: GenerationSettings
    verify: VerifyMode | None = None
    logprobs: int | None = None
    arrival_time: float = field(default_factory=time.perf_counter)
    index: int = 0
    schedule: Schedule | None = None
    metrics: RawPerfMetrics = field(default_factory=RawPerfMetrics)
    cached: tuple[CachedSequence, CachedSequence] | None = None
    blocks_read: bool = False
    answered: SequenceOf[int] = ()
    reports_reading: bool = False
    prompt_logprobs: int | None = None
    visual: VisualPrompt | None = None
    detokenizer: IncrementalDetokenizer | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities of the target at one position, before sampling changes them.

    Attributes:
        logprob: of the token that stands there.
        top: token and log probability of the most probable ones, the highest first.
        rank: 1 for the most probable token.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    rank: int = 0


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Counts of one request up to an output.

    Attributes:
        num_drafts: drafts that were verified.
        num_draft_tokens: tokens that they had.
        num_accepted_tokens: how many of those were accepted.
        num_accepted_tokens_per_pos: entry i: drafts whose token i was accepted.
        attended_tokens: context tokens that verification attention read, over passes, layers and KV heads.
        context_tokens: those that dense attention would have read.
        prefill_density: share of the context that its prompt read; 1.0 when dense.
        is_lossy: whether the text may differ from the model's own.
        num_cached_tokens: tokens of the prompt whose keys and values were there already.
        num_read_tokens: tokens of the prompt whose keys and values are there now.
    """

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: tuple[int, ...] = ()
    attended_tokens: float = 0.0
    context_tokens: float = 0.0
    is_lossy: bool = False
    num_cached_tokens: int = 0
    prefill_density: float = 1.0
    num_read_tokens: int = 0

    @property
    def attention_density(self) -> float:
        """Share of the context's cache that verification attention read; 1.0 when dense."""
        return self.attended_tokens / self.context_tokens if self.context_tokens else 1.0


@dataclass(slots=True)
class RequestOutput:
    """What one step brought for one request.

    Attributes:
        request_id: of the request.
        token_ids: its new tokens, which are final.
        writers: who wrote each of them.
        logprobs: of each of them; empty unless the request asked.
        prompt_logprobs: of the prompt's tokens but the first, those that have been read since.
        finish_reason: NONE while the request goes on.
        metrics: counts of the request so far.
        error: why the request failed; such an output is its last.
        blocks_read: for each block of the context, the share of layers and heads that read it in the last
            verification; `None` where all was read, or nobody asked.
        score: of a beam.
        beams: of a beam search, with whose end all comes at once: an output for each answer that was asked
            for, the best first, which is that of the request itself.
    """

    request_id: str
    token_ids: list[int] = field(default_factory=list)
    writers: list[Writer] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: GenerationFinishReason = GenerationFinishReason.NONE
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    error: Exception | None = None
    blocks_read: list[float] | None = None
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    score: float = 0.0
    beams: list[RequestOutput] = field(default_factory=list)

    @property
    def answers(self) -> list[RequestOutput]:
        """What came for each answer of the request."""
        return self.beams or [self]

    @property
    def finished(self) -> bool:
        """Whether this is the last output of its request."""
        return self.error is not None or self.finish_reason != GenerationFinishReason.NONE
