"""One sequence while it is generated."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from openvino_genai import GenerationFinishReason

from ovspec.acceptance import RandomStreams
from ovspec.cache import CachedSequence
from ovspec.generation_config import GenerationSettings
from ovspec.logits_processors import LogitsProcessor


@dataclass(slots=True)
class Sequence:
    """A prompt and what was generated so far.

    Attributes:
        tokens: prompt and output. Between steps all but the last are in the target's cache.
        prompt_length: tokens of the prompt.
        limit: new tokens it may get.
        settings: how it is generated.
        processor: its sampling rules, which see its tokens.
        streams: its random numbers.
        target: its share of the target's cache.
        draft: its share of the draft model's cache.
        finish_reason: why it ended; NONE while it runs.
    """

    tokens: list[int]
    prompt_length: int
    limit: int
    settings: GenerationSettings
    processor: LogitsProcessor
    streams: RandomStreams
    target: CachedSequence = field(default_factory=CachedSequence)
    draft: CachedSequence = field(default_factory=CachedSequence)
    finish_reason: GenerationFinishReason = GenerationFinishReason.NONE

    @classmethod
    def start(cls, prompt: SequenceOf[int], limit: int, settings: GenerationSettings, index: int) -> Sequence:
        """A sequence that continues `prompt`; `index` sets its random streams apart from its siblings'."""
        return cls(
            tokens=list(prompt),
            prompt_length=len(prompt),
            limit=limit,
            settings=settings,
            processor=LogitsProcessor(settings.sampling, prompt),
            streams=RandomStreams(settings.sampling.rng_seed, index),
        )

    @property
    def generated(self) -> list[int]:
        """The output's tokens, a stop token included."""
        return self.tokens[self.prompt_length :]

    @property
    def remaining(self) -> int:
        """New tokens it may still get."""
        return self.limit - (len(self.tokens) - self.prompt_length)

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        return bool(self.finish_reason != GenerationFinishReason.NONE)

    def uncached(self, cached: CachedSequence) -> NDArray[np.int64]:
        """Tokens whose keys and values a model has not computed yet, i64 `[tokens]`."""
        return np.array(self.tokens[cached.length :], np.int64)

    def append(self, tokens: SequenceOf[int]) -> list[int]:
        """Take accepted tokens up to a stop token or the limit; return those that were taken."""
        taken: list[int] = []
        for token in tokens:
            taken.append(token)
            if token in self.settings.stop_token_ids:
                self.finish_reason = GenerationFinishReason.STOP
                break
            if len(taken) >= self.remaining:
                self.finish_reason = GenerationFinishReason.LENGTH
                break
        self.tokens.extend(taken)
        self.processor.extend(taken)
        self.trim_caches()
        return taken

    def truncate(self, length: int) -> None:
        """End the sequence with its first `length` tokens, e.g. where a stop string was found."""
        self.processor.rollback(len(self.tokens) - length)
        del self.tokens[length:]
        self.finish_reason = GenerationFinishReason.STOP
        self.trim_caches()

    def trim_caches(self) -> None:
        """Roll both caches back to tokens that the sequence really has, its last one excepted."""
        for cached in (self.target, self.draft):
            cached.rollback(min(cached.length, len(self.tokens) - 1))
