"""Prompts of models that write what stands between two texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Names of the tokens before the prefix, before the suffix and before the answer, by family.
_PREFIX_FIRST = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek  # noqa: RUF001
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
)
# The same where models are trained with the suffix first. Codestral's answer goes on behind the prefix.
_SUFFIX_FIRST = (
    ("[PREFIX]", "[SUFFIX]"),
    ("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"),  # Seed-Coder
)


@dataclass(frozen=True, slots=True)
class FillInMiddle:
    """How a model is asked for the text between a prefix and a suffix.

    Attributes:
        prefix, suffix: tokens before these texts.
        middle: tokens before the answer.
        suffix_first: whether the suffix comes first.
    """

    prefix: int
    suffix: int
    middle: tuple[int, ...]
    suffix_first: bool

    @classmethod
    def of(cls, tokens_of: Callable[[str], Sequence[int]]) -> FillInMiddle | None:
        """The form that a tokenizer has tokens for, or `None`."""
        for names in (*_PREFIX_FIRST, *_SUFFIX_FIRST):
            found = [tokens_of(name) for name in names]
            ids = [tokens[0] for tokens in found if len(tokens) == 1]
            if len(set(ids)) == len(names):  # unknown names may all be one token
                return cls(ids[0], ids[1], tuple(ids[2:]), names in _SUFFIX_FIRST)
        return None

    def prompt(self, prefix: Sequence[int], suffix: Sequence[int]) -> list[int]:
        """The tokens of a prompt."""
        parts = [[self.prefix, *prefix], [self.suffix, *suffix]]
        first, second = reversed(parts) if self.suffix_first else parts
        return [*first, *second, *self.middle]
