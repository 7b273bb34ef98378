"""What a question to documents gives, with every part of the score."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ovspec.rag.store import Hit

Mode = Literal["speculative", "plain"]
MODES: tuple[Mode, ...] = ("speculative", "plain")


@dataclass(frozen=True, slots=True)
class Draft:
    """An answer from a subset of the documents; scores are natural logarithms, sums over tokens.

    Attributes:
        documents: places of its documents in the result, from 0.
        rho_draft: log P(rationale | question, documents) + log P(answer | question, documents, rationale),
            under the drafter.
        rho_sc: self-consistency, log P(answer, rationale | question), under the target; `None` where the
            draft has no answer and others have, so that nobody verified it.
        rho_sr: self-reflection, log P("Yes" | question, answer, rationale, reflection), under the target.
    """

    answer: str
    rationale: str
    documents: tuple[int, ...]
    rho_draft: float
    rho_sc: float | None = None
    rho_sr: float | None = None

    @property
    def rho(self) -> float | None:
        """The score, the sum of the three; the draft with the highest is chosen."""
        if self.rho_sc is None or self.rho_sr is None:
            return None
        return self.rho_draft + self.rho_sc + self.rho_sr


@dataclass(frozen=True, slots=True)
class Durations:
    """Milliseconds of the parts of an answer."""

    retrieval: float = 0.0
    drafting: float = 0.0
    verification: float = 0.0
    generation: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        return self.retrieval + self.drafting + self.verification + self.generation


@dataclass(frozen=True, slots=True)
class RagResult:
    """An answer from documents.

    Attributes:
        documents: what was retrieved, the best first.
        clusters: of their places; empty with "plain".
        drafts: one for each subset; none with "plain".
        chosen: place of the draft that has the answer; `None` with "plain".
        target_tokens: tokens that the target computed, of prompts, verification and its own answer.
        drafter_tokens: tokens that the drafter computed.
        durations: of the parts.
        why_lossy: why the target's answer may differ from its own, empty where it can't.
    """

    question: str
    mode: Mode
    answer: str
    documents: list[Hit]
    clusters: list[list[int]] = field(default_factory=list)
    drafts: list[Draft] = field(default_factory=list)
    chosen: int | None = None
    target_tokens: int = 0
    drafter_tokens: int = 0
    durations: Durations = field(default_factory=Durations)
    why_lossy: str = ""

    def as_json(self) -> dict[str, Any]:
        """All of it as values of JSON, but the vectors."""
        body = asdict(self)
        for document in body["documents"]:
            del document["vector"]
        for fields, one in zip(body["drafts"], self.drafts, strict=True):
            fields["rho"] = one.rho
        body["durations"]["total"] = self.durations.total
        return body
