"""Build the drafter of a choice, with the models it needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import openvino_genai

from ovspec.drafters.auto import AutoDrafter
from ovspec.drafters.corpus import Corpus
from ovspec.drafters.drafter import Drafter
from ovspec.drafters.drafter_choice import (
    Auto,
    DrafterChoice,
    LayerSkip,
    PromptLookup,
    SparseSelf,
    Suffix,
    UserChoice,
)
from ovspec.drafters.layer_skip import LayerSkipDrafter
from ovspec.drafters.prompt_lookup import PromptLookupDrafter
from ovspec.drafters.sparse_self import SparseSelfDrafter
from ovspec.drafters.suffix import SuffixDrafter
from ovspec.drafters.user import UserDrafter
from ovspec.runner.model_runner import ModelRunner


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts from which drafters are built.

    Attributes:
        target: the target's runner.
        tokenizer: the target's.
        vocab_size: the target's.
        assistant: the drafter of the draft model, if there is one.
    """

    target: ModelRunner
    tokenizer: openvino_genai.Tokenizer
    vocab_size: int
    assistant: Drafter | None


def build_drafter(choice: DrafterChoice | None, parts: Parts) -> Drafter | None:
    """The drafter of a choice.

    Raises:
        ValueError: a corpus that can't be read, or a target that can't draft.
    """
    if choice is None:
        return None
    if isinstance(choice, UserChoice):
        return UserDrafter(choice.proposer, parts.vocab_size, parts.target.why_no_trees)
    if isinstance(choice, PromptLookup):
        return PromptLookupDrafter(choice.max_ngram_size)
    if isinstance(choice, Suffix):
        return SuffixDrafter(_corpus(choice.corpus, parts))
    if isinstance(choice, SparseSelf):
        return SparseSelfDrafter(parts.target, choice.sparse)
    if isinstance(choice, LayerSkip):
        return LayerSkipDrafter(parts.target, choice.share, choice.sparse)
    if isinstance(choice, Auto):
        return AutoDrafter(SuffixDrafter(_corpus(choice.corpus, parts)), parts.assistant)
    return parts.assistant


def _corpus(path: str | Path | None, parts: Parts) -> Corpus | None:
    return None if path is None else Corpus.read(Path(path), parts.tokenizer)
