"""The choice of a drafter: a name, a name with options, or the user's own object."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from ovspec.drafters.prompt_lookup import DEFAULT_MAX_NGRAM_SIZE
from ovspec.drafters.user import ProposesTokens
from ovspec_models.folder.sparse_verify import SparseVerify


@dataclass(frozen=True, slots=True)
class Assistant:
    """A draft model, `LLMPipeline(draft_model=...)`."""

    name = "assistant"


@dataclass(frozen=True, slots=True)
class PromptLookup:
    """Looks up n-grams in prompt and output.

    Args:
        max_ngram_size: longest n-gram that is looked up; shorter ones follow, down to one token.
    """

    name = "prompt_lookup"
    max_ngram_size: int = DEFAULT_MAX_NGRAM_SIZE

    def __post_init__(self) -> None:
        if not isinstance(self.max_ngram_size, int) or self.max_ngram_size < 1:
            raise ValueError(f"max_ngram_size={self.max_ngram_size!r}: expected a number of at least 1")


@dataclass(frozen=True, slots=True)
class Suffix:
    """Looks up suffixes of any length in prompt, output and corpus.

    Args:
        corpus: text file that is searched as well.
    """

    name = "suffix"
    corpus: str | Path | None = None


@dataclass(frozen=True, slots=True)
class SparseSelf:
    """The target itself, which reads few blocks of the context or few experts.

    Args:
        sparse: what a drafting pass may read.
    """

    name = "sparse_self"
    sparse: SparseVerify = field(default_factory=lambda: SparseVerify(budget=1024))

    def __post_init__(self) -> None:
        if not isinstance(self.sparse, SparseVerify):
            raise ValueError(f"sparse={self.sparse!r}: expected ovspec.SparseVerify(...)")


@dataclass(frozen=True, slots=True)
class LayerSkip:
    """The target itself, with some of its layers left out.

    Args:
        share: of the layers that are left out, above 0 and below 1. The default is about what the papers take
            for models of 13 B parameters and more, of whose layers many do little (SWIFT: 0.45). Of few
            layers each one counts: leave out one of 6, not three. By the paper's rule of selection anchors
            stay.
        sparse: what the others may read, as of `SparseSelf`; `None`: everything.
    """

    name = "layer_skip"
    share: float = 0.5
    sparse: SparseVerify | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.share, (int, float)) or not 0 < self.share < 1:
            raise ValueError(f"share={self.share!r}: expected a number above 0 and below 1")
        if not isinstance(self.sparse, (SparseVerify, type(None))):
            raise ValueError(f"sparse={self.sparse!r}: expected ovspec.SparseVerify(...) or None")


@dataclass(frozen=True, slots=True)
class Auto:
    """Looks suffixes up, and asks the draft model, if there is one, where their match is short.

    Args:
        corpus: text file that suffixes are searched in as well.
    """

    name = "auto"
    corpus: str | Path | None = None


@dataclass(frozen=True, slots=True)
class UserChoice:
    """The user's own object that proposes tokens."""

    proposer: ProposesTokens

    @property
    def name(self) -> str:
        """Name in error messages."""
        return str(getattr(self.proposer, "name", type(self.proposer).__name__))


DrafterChoice: TypeAlias = Assistant | PromptLookup | Suffix | SparseSelf | LayerSkip | Auto | UserChoice
_KINDS = (Assistant, PromptLookup, Suffix, SparseSelf, LayerSkip, Auto)
#: Plain decoding.
NONE = "none"
NAMES = (*(kind.name for kind in _KINDS), NONE)


def parse_drafter(drafter: object, has_draft_model: bool) -> DrafterChoice | None:
    """Check a user's `drafter` argument, by default `Auto`; returns `None` for plain decoding.

    Raises:
        ValueError: it is not a drafter, needs a draft model that is missing, or does not use the given one.
    """
    choice = _parse(drafter)
    takes_model = isinstance(choice, (Assistant, Auto))
    if has_draft_model and not takes_model:
        name = NONE if choice is None else choice.name
        raise ValueError(
            f"drafter={name!r} has no use for the draft model: leave draft_model out, or take "
            "drafter='assistant' or 'auto'"
        )
    if isinstance(choice, Assistant) and not has_draft_model:
        raise ValueError("drafter='assistant' needs a draft model: pass draft_model=ovspec.draft_model(...)")
    return choice


def _parse(drafter: object) -> DrafterChoice | None:
    if drafter is None:
        return Auto()
    if drafter == NONE:
        return None
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
