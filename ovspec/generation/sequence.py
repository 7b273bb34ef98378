"""One sequence while it is generated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace
from typing import Any

from openvino_genai import GenerationFinishReason

from ovspec.cache.cache import CachedSequence
from ovspec.generation.generation_config import GenerationSettings
from ovspec.sampling.constraint import Constraint
from ovspec.sampling.coupling import Coupling
from ovspec.sampling.logits_processors import LogitsProcessor


@dataclass(slots=True)
class Sequence:
    """A prompt and what was generated so far.

    Attributes:
        tokens: prompt, output and provisional tokens. Between steps the target's cache holds all of them but
            the last.
        limit: largest number of new tokens.
        processor: logits processors with the state of this sequence.
        coupling: random numbers by position.
        target: blocks in the target's cache.
        draft: blocks in the draft model's cache.
        unseen: tokens of the prompt that the draft model's cache leaves out, as they stand for pictures.
        draft_states: state of the drafters, by drafter name.
        provisional: how many of the last tokens no dense pass has confirmed.
        finish_reason: NONE while the sequence runs.
    """

    tokens: list[int]
    prompt_length: int
    limit: int
    settings: GenerationSettings
    processor: LogitsProcessor
    coupling: Coupling
    target: CachedSequence = field(default_factory=CachedSequence)
    draft: CachedSequence = field(default_factory=CachedSequence)
    unseen: int = 0
    draft_states: dict[str, Any] = field(default_factory=dict)
    provisional: int = 0
    finish_reason: GenerationFinishReason = GenerationFinishReason.NONE

    @classmethod
    def start(
        cls,
        prompt: SequenceOf[int],
        limit: int,
        settings: GenerationSettings,
        index: int,
        answered: SequenceOf[int] = (),
        constraint: Constraint | None = None,
    ) -> Sequence:
        """A sequence that continues `prompt`, and what was `answered` to it already.

        Sequences with another `index` have other random numbers. A `constraint` stands at its beginning.
        """
        processor = LogitsProcessor(settings.sampling, prompt, constraint)
        processor.extend(answered)
        return cls(
            tokens=[*prompt, *answered],
            prompt_length=len(prompt),
            limit=limit,
            settings=settings,
            processor=processor,
            coupling=Coupling(settings.sampling.rng_seed, index, len(answered)),
        )

    def fork(self, target: CachedSequence) -> Sequence:
        """The same sequence once more, to go on with other tokens; nobody has drafted for it.

        Args:
            target: its own blocks in the target's cache.
        """
        return replace(
            self,
            tokens=list(self.tokens),
            processor=self.processor.fork(),
            target=target,
            draft=CachedSequence(),
            unseen=0,
            draft_states={},
            provisional=0,
        )

    @property
    def generated(self) -> list[int]:
        """The output's tokens, a stop token included, without the provisional ones."""
        return self.tokens[self.prompt_length : self.confirmed]

    @property
    def confirmed(self) -> int:
        """Tokens of prompt and output, without the provisional ones."""
        return len(self.tokens) - self.provisional

    @property
    def remaining(self) -> int:
        """New tokens that may still be added after the provisional ones."""
        return self.limit - (len(self.tokens) - self.prompt_length)

    @property
    def finished(self) -> bool:
        """Whether the sequence has ended."""
        return bool(self.finish_reason != GenerationFinishReason.NONE)

    def begins(self, count: int) -> SequenceOf[int]:
        """Its first tokens, as the target's cache knows them."""
        return self.target.keyed(self.tokens[:count])

    def text(self, start: int = 0) -> list[int]:
        """The tokens without those that stand for pictures, from the one of this number on."""
        visual = self.target.visual
        if visual is None:
            return self.tokens[start:]
        if (place := start + len(visual.places)) >= self.prompt_length:
            return self.tokens[place:]  # behind all pictures
        return visual.text_of(self.tokens)[start:]

    def ends_with(self, tokens: SequenceOf[int]) -> bool:
        """Whether the last of `tokens`, behind those that are there, ends the sequence."""
        if tokens and tokens[-1] in self.settings.stop_token_ids:
            return True
        constraint = self.processor.constraint
        return constraint is not None and constraint.ends(tokens)

    def append(self, tokens: SequenceOf[int]) -> list[int]:
        """Append accepted tokens up to a stop token, the end of a grammar or the limit; return those."""
        taken: list[int] = []
        if not self.limit:  # somebody wants the prompt alone
            self.finish_reason, tokens = GenerationFinishReason.LENGTH, ()
        for token in tokens:
            taken.append(token)
            if self.ends_with(taken):
                self.finish_reason = GenerationFinishReason.STOP
                break
            if len(taken) >= self.remaining:
                self.finish_reason = GenerationFinishReason.LENGTH
                break
        self.tokens.extend(taken)
        self.processor.extend(taken)
        self.trim_caches()
        return taken

    def add_provisional(self, tokens: SequenceOf[int]) -> None:
        """Append provisional tokens."""
        self.target.keep_state(self.confirmed - 1)
        self.tokens.extend(tokens)
        self.processor.extend(tokens)
        self.provisional += len(tokens)
        self.trim_caches()

    def take_back(self) -> list[int]:
        """Remove the provisional tokens and their keys and values in the target; return the tokens.

        The draft model's cache stays as it is: `append` removes the tokens that are not confirmed.

        Raises:
            GrammarError: the grammar can't go back; the sequence has, and can only end.
        """
        tokens = self.tokens[self.confirmed :]
        del self.tokens[self.confirmed :]
        self.provisional = 0
        self.target.rollback(min(self.target.length, len(self.tokens) - 1))
        self.processor.rollback(len(tokens))
        return tokens

    def trim_caches(self) -> None:
        """Roll both caches back to the tokens of the sequence, without its last one."""
        for cached, unseen in ((self.target, 0), (self.draft, self.unseen)):
            cached.rollback(min(cached.length, len(self.tokens) - unseen - 1))


def occurrences(prompts: SequenceOf[SequenceOf[int]]) -> list[int]:
    """How often each prompt stands before itself in the list: the index of its random numbers.

    A prompt gets the same random numbers alone and beside others; several answers to one prompt get others.
    """
    seen: Counter[tuple[int, ...]] = Counter()
    indices = []
    for prompt in map(tuple, prompts):
        indices.append(seen[prompt])
        seen[prompt] += 1
    return indices
