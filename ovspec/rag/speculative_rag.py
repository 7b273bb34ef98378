"""Speculative RAG (arXiv 2407.08223): a small model drafts from documents, a large one verifies."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ovspec.errors import InvalidValueError
from ovspec.generation.inputs import check_texts
from ovspec.modes.verify_mode import why_lossy
from ovspec.pipeline.pipeline import LLMPipeline
from ovspec.rag.clusters import k_means, subsets, word_vectors
from ovspec.rag.drafting import draft
from ovspec.rag.embedder import Embedder
from ovspec.rag.generating import check_room, write
from ovspec.rag.indexing import embedder_of
from ovspec.rag.prompts import Prompts
from ovspec.rag.result import MODES, Draft, Durations, Mode, RagResult
from ovspec.rag.store import Hit, Store
from ovspec.rag.verification import verify

ClusterBy = Literal["document", "question"]


@dataclass(frozen=True, slots=True)
class RagSettings:
    """How questions are answered; the letters are the paper's.

    Attributes:
        num_documents: n, chunks to retrieve.
        num_drafts: m, subsets and drafts at most; fewer where there are fewer different subsets.
        documents_per_draft: k, clusters, and documents of a subset.
        max_rationale_tokens, max_answer_tokens: of a draft, and of a plain answer.
        cluster_by: "document" clusters the store's vectors, those of words where it has no others. The paper
            makes vectors of each document together with the question; so does "question", at the cost of
            embedding the retrieved chunks anew.
        seed: of the clusters and the subsets.
    """

    num_documents: int = 10
    num_drafts: int = 5
    documents_per_draft: int = 2
    max_rationale_tokens: int = 64
    max_answer_tokens: int = 32
    cluster_by: ClusterBy = "document"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_documents", "num_drafts", "documents_per_draft"):
            if getattr(self, name) < 1:
                raise InvalidValueError(f"{name}={getattr(self, name)}: expected at least 1")
        if self.documents_per_draft > self.num_documents:
            raise InvalidValueError(
                f"documents_per_draft={self.documents_per_draft}: expected num_documents="
                f"{self.num_documents} at most"
            )
        if self.cluster_by not in get_args(ClusterBy):
            raise InvalidValueError(
                f"cluster_by={self.cluster_by}: expected {' or '.join(get_args(ClusterBy))}"
            )


class SpeculativeRAG:
    """Answers questions from a store.

    With the mode "speculative", retrieved documents are clustered, and subsets have one document of each
    cluster. The drafter writes an answer with its rationale from each subset, all in one batch. The target
    scores the drafts without the documents: rho = log P(answer, rationale | question) + log P("Yes" |
    question, answer, rationale, reflection) + the drafter's own log probability. The highest is the answer.
    With "plain" the target reads all documents and answers.

    Args:
        store: a `Store`, or its file.
        target: verifies drafts, densely; with "plain" it answers as it is set, also with sparse verification.
        drafter: writes drafts; `None`: the target does.
        settings: how.
        embedding_model: folder of the store's model where that lies elsewhere now, or the model itself.

    Raises:
        InvalidValueError: no store, or a store of another embedding model.
    """

    def __init__(
        self,
        store: Store | str | Path,
        target: LLMPipeline,
        drafter: LLMPipeline | None = None,
        settings: RagSettings | None = None,
        embedding_model: Embedder | str | Path | None = None,
    ) -> None:
        self.store = store if isinstance(store, Store) else Store(store)
        self.target, self.drafter = target, drafter or target
        self.settings = settings or RagSettings()
        if not isinstance(embedding_model, Embedder):
            folder = None if embedding_model is None else Path(embedding_model)
            embedding_model = embedder_of(self.store.settings, folder)
        self._embedder = embedding_model
        if self.settings.cluster_by == "question" and self._embedder is None:
            raise InvalidValueError(
                "cluster_by=question: the store has no vectors; index with an embedding model, or cluster by "
                "document"
            )

    def retrieve(self, question: str) -> list[Hit]:
        """The documents for a question, the best first.

        Raises:
            InvalidValueError: a question that is empty or no valid text, more documents than the store finds,
                or no document fits.
        """
        if not question.strip():
            raise InvalidValueError("question=...: it is empty; ask something")
        check_texts([question], "question=...")
        vector = self._embedder.query(question) if self._embedder else None
        found = self.store.search(question, self.settings.num_documents, vector)
        if not found:
            raise InvalidValueError(
                f"{self.store.path}: no document has a word of the question; index documents that have, or "
                "use other words"
            )
        return found

    def check(self, question: str) -> None:
        """Refuse a question that can't be asked, before anything is computed.

        Raises:
            InvalidValueError: as `retrieve`, or the target has no room for the documents.
        """
        texts = [found.text for found in self.retrieve(question)]
        check_room(self.target, [Prompts(self.target).plain(question, texts)])

    def ask(self, question: str, mode: Mode = "speculative", **options: Any) -> RagResult:
        """Answer a question.

        Args:
            mode: "speculative" or "plain".
            options: with "plain", further fields of the target's generation configuration.

        Raises:
            InvalidValueError: as `retrieve`, an unknown mode, or no room for the documents in a model.
        """
        if mode not in MODES:
            raise InvalidValueError(f"mode={mode}: expected {' or '.join(MODES)}")
        if mode == "plain":
            return self._answer(question, options)
        if options:
            raise InvalidValueError(f"{next(iter(options))}=...: drafts are greedy; it needs mode='plain'")
        return self.verified(self.drafted(question))

    def drafted(self, question: str) -> RagResult:
        """Drafts that nobody has verified, of which none is chosen; as `ask` otherwise."""
        documents, retrieval = self._timed_retrieval(question)
        started = time.perf_counter()
        settings, rng = self.settings, np.random.default_rng(self.settings.seed)
        clusters = k_means(self._vectors(question, documents), settings.documents_per_draft, rng)
        chosen = subsets(clusters, settings.num_drafts, rng)
        texts = [[documents[place].text for place in places] for places in chosen]
        lengths = settings.max_rationale_tokens, settings.max_answer_tokens
        drafts = draft(self.drafter, question, texts, *lengths)
        return RagResult(
            question,
            "speculative",
            "",
            documents,
            clusters,
            [
                Draft(one.answer, one.rationale, places, one.rho_draft)
                for one, places in zip(drafts, chosen, strict=True)
            ],
            drafter_tokens=sum(one.num_read for one in drafts),
            durations=Durations(retrieval, drafting=_since(started)),
        )

    def verified(self, result: RagResult, shared: bool = True) -> RagResult:
        """The drafts of a result with the target's scores, and the best of them chosen.

        Args:
            result: what `drafted` gave.
            shared: whether the target reads the question once for all drafts; else once for each.
        """
        started = time.perf_counter()
        # A draft without an answer is none, unless all are.
        kept = [place for place, one in enumerate(result.drafts) if one.answer] or range(len(result.drafts))
        texts = [(result.drafts[place].answer, result.drafts[place].rationale) for place in kept]
        found = verify(self.target, result.question, texts, shared)
        drafts = list(result.drafts)
        for place, verdict in zip(kept, found.verdicts, strict=True):
            drafts[place] = replace(drafts[place], rho_sc=verdict.rho_sc, rho_sr=verdict.rho_sr)
        chosen = max(kept, key=lambda place: _score(drafts[place]))
        return replace(
            result,
            answer=drafts[chosen].answer,
            drafts=drafts,
            chosen=chosen,
            target_tokens=found.num_read,
            durations=replace(result.durations, verification=_since(started)),
        )

    def _answer(self, question: str, options: dict[str, Any]) -> RagResult:
        """The target's answer from all documents."""
        documents, retrieval = self._timed_retrieval(question)
        started = time.perf_counter()
        prompt = Prompts(self.target).plain(question, [found.text for found in documents])
        (written,) = write(self.target, [prompt], "\n", self.settings.max_answer_tokens, **options)
        threshold = self.target.settings(**options).acceptance_threshold
        lossy = why_lossy(self.target.verify, threshold, self.target.prefill)
        return RagResult(
            question,
            "plain",
            written.text,
            documents,
            target_tokens=written.num_read,
            durations=Durations(retrieval, generation=_since(started)),
            why_lossy=lossy if written.metrics.is_lossy else "",  # not where all was read
        )

    def _timed_retrieval(self, question: str) -> tuple[list[Hit], float]:
        started = time.perf_counter()
        return self.retrieve(question), _since(started)

    def _vectors(self, question: str, documents: Sequence[Hit]) -> NDArray[np.float32]:
        """What documents are clustered by, f32 `[documents, dimensions]`."""
        if self._embedder is not None and self.settings.cluster_by == "question":
            return self._embedder.documents([f"{question}\n{found.text}" for found in documents])
        vectors = [found.vector for found in documents if found.vector is not None]
        return np.stack(vectors) if vectors else word_vectors([found.text for found in documents])


def _score(one: Draft) -> float:
    return -np.inf if one.rho is None else one.rho


def _since(started: float) -> float:
    return 1e3 * (time.perf_counter() - started)
