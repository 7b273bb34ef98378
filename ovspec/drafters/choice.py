"""Which drafter a pipeline takes: by name, by name with options, or one of the user's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from ovspec.drafters.prompt_lookup import DEFAULT_MAX_NGRAM_SIZE
from ovspec.drafters.user import ProposesTokens
from ovspec.verify.verify_config import SparseVerify


@dataclass(frozen=True, slots=True)
class Assistant:
    """A draft model, `LLMPipeline(draft_model=...)`."""

    name = "assistant"


@dataclass(frozen=True, slots=True)
class PromptLookup:
    """N-grams of prompt and output.

    Args:
        max_ngram_size: tokens that are looked up at first; then one fewer, down to one.
    """

    name = "prompt_lookup"
    max_ngram_size: int = DEFAULT_MAX_NGRAM_SIZE

    def __post_init__(self) -> None:
        if not isinstance(self.max_ngram_size, int) or self.max_ngram_size < 1:
            raise ValueError(f"max_ngram_size={self.max_ngram_size!r}: expected a number of at least 1")


@dataclass(frozen=True, slots=True)
class Suffix:
    """Suffixes of any length in prompt, output and corpus.

    Args:
        corpus: text file that is searched as well.
    """

    name = "suffix"
    corpus: str | Path | None = None


@dataclass(frozen=True, slots=True)
class SparseSelf:
    """The target itself, over few blocks of the context, or few experts.

    Args:
        sparse: what a drafting pass may read.
    """

    name = "sparse_self"
    sparse: SparseVerify = field(default_factory=lambda: SparseVerify(budget=1024))

    def __post_init__(self) -> None:
        if not isinstance(self.sparse, SparseVerify):
            raise ValueError(f"sparse={self.sparse!r}: expected ovspec.SparseVerify(...)")


@dataclass(frozen=True, slots=True)
class Auto:
    """Suffixes, then n-grams, then the draft model if there is one.

    Args:
        corpus: text file that suffixes are searched in as well.
    """

    name = "auto"
    corpus: str | Path | None = None


@dataclass(frozen=True, slots=True)
class UserChoice:
    """An object of the user's that proposes tokens."""

    proposer: ProposesTokens

    @property
    def name(self) -> str:
        """As errors call it."""
        return str(getattr(self.proposer, "name", type(self.proposer).__name__))


DrafterChoice: TypeAlias = Assistant | PromptLookup | Suffix | SparseSelf | Auto | UserChoice
_KINDS = (Assistant, PromptLookup, Suffix, SparseSelf, Auto)
NAMES = tuple(kind.name for kind in _KINDS)


def parse_drafter(drafter: object, has_draft_model: bool) -> DrafterChoice | None:
    """Check a user's `drafter` argument; `None` without one and without a draft model.

    Raises:
        ValueError: it is no drafter, or does not go with the draft model or the lack of one.
    """
    choice = _parse(drafter, has_draft_model)
    takes_model = isinstance(choice, (Assistant, Auto))
    if has_draft_model and not takes_model:
        assert choice is not None
        raise ValueError(
            f"drafter={choice.name!r} has no use for the draft model: leave draft_model out, or take "
            "drafter='assistant' or 'auto'"
        )
    if isinstance(choice, Assistant) and not has_draft_model:
        raise ValueError("drafter='assistant' needs a draft model: pass draft_model=ovspec.draft_model(...)")
    return choice


def _parse(drafter: object, has_draft_model: bool) -> DrafterChoice | None:
    if drafter is None:
        return Assistant() if has_draft_model else None
    if isinstance(drafter, _KINDS):
        return drafter
    if isinstance(drafter, str):
        for kind in _KINDS:
            if kind.name == drafter:
                return kind()
    elif callable(getattr(drafter, "propose", None)):
        return UserChoice(drafter)  # type: ignore[arg-type]
    raise ValueError(
        f"drafter={drafter!r}: expected one of {', '.join(NAMES)}, or an object with propose(context, k)"
    )
