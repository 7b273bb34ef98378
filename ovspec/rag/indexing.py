"""A store filled from files: what changed is read again, and a run that was killed goes on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ovspec.errors import InvalidValueError
from ovspec.rag.chunks import DEFAULT_CHUNK_OVERLAP, DEFAULT_CHUNK_SIZE, check_sizes, split
from ovspec.rag.documents import find_documents, text_of
from ovspec.rag.embedder import Embedder, EmbeddingModel
from ovspec.rag.store import ChunkedDocument, Store, StoreSettings

# Chunks that are embedded together, and about so many that a transaction holds.
_BATCH = 32


@dataclass(frozen=True, slots=True)
class IndexProgress:
    """How far an index is.

    Attributes:
        documents: those that the store holds by now, of those that are new or have changed.
        total: how many these are.
        chunks: that were made of them so far, those of the document that is being read included.
    """

    documents: int
    total: int
    chunks: int


@dataclass(slots=True)
class IndexReport:
    """What an index did.

    Attributes:
        added, changed, removed, unchanged: documents.
        without_text: of those added or changed, documents in which there was no text.
        chunks: that were written.
        left_out: files that are no documents, by suffix.
    """

    added: int = 0
    changed: int = 0
    removed: int = 0
    unchanged: int = 0
    without_text: int = 0
    chunks: int = 0
    left_out: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class IndexChoices:
    """What the caller asks of the store; `None` is what the store has, or the default of a new one.

    Attributes:
        embedding_model: folder of the model that makes the vectors; a new store has none without it.
        pooling: as of `Embedder`.
        chunk_size, chunk_overlap: characters of a chunk, and those that the next one repeats at most.
    """

    embedding_model: Path | None = None
    pooling: str | None = None
    chunk_size: int | None = None
    chunk_overlap: int | None = None

    def settings(self, known: StoreSettings | None, model: EmbeddingModel | None) -> StoreSettings:
        """The settings of the store.

        Args:
            known: those of a store that exists.
            model: that of `embedding_model`.

        Raises:
            InvalidValueError: sizes that can't be, or others than the store's.
        """
        size = (
            (known.chunk_size if known else DEFAULT_CHUNK_SIZE)
            if self.chunk_size is None
            else self.chunk_size
        )
        overlap = self.chunk_overlap
        if overlap is None:
            overlap = known.chunk_overlap if known else min(DEFAULT_CHUNK_OVERLAP, max(size, 0) // 5)
        check_sizes(size, overlap)
        asked = StoreSettings(size, overlap, model)
        if known is None:
            return asked
        for name in ("chunk_size", "chunk_overlap"):
            given, held = getattr(asked, name), getattr(known, name)
            if given != held:
                raise InvalidValueError(
                    f"{name}={given}: the store's chunks were made with {held}; leave it out, or index "
                    "into a new file"
                )
        return known


def embedder_of(
    settings: StoreSettings, folder: Path | None = None, pooling: str | None = None
) -> Embedder | None:
    """The embedding model of a store, from where it was or from `folder`; `None` for a store without vectors.

    Raises:
        InvalidValueError: a model for a store without vectors, or another model than the store's.
    """
    held = settings.embedding
    if held is None:
        if folder is not None:
            raise InvalidValueError(
                f"embedding_model='{folder}': the store has words alone; leave it out, or index anew"
            )
        return None
    if folder is None and not Path(held.folder).is_dir():
        raise InvalidValueError(
            f"embedding_model=...: the store's model is no longer in {held.folder}; name its folder"
        )
    embedder = Embedder(folder or Path(held.folder), pooling or held.pooling)
    if (embedder.model.digest, embedder.model.pooling) != (held.digest, held.pooling):
        raise InvalidValueError(
            f"embedding_model='{embedder.model.folder}': the vectors of the store are of another model "
            f"({held.folder}, pooling {held.pooling}); name that one, or index into a new file"
        )
    return embedder


def index(
    store: str | Path,
    documents: Sequence[str | Path],
    choices: IndexChoices | None = None,
    progress: Callable[[IndexProgress], object] = lambda progress: None,
) -> IndexReport:
    """Make the store hold the documents as they are now; one that does not exist is made.

    A document is known by its path. Those that have not changed since are left as they are, and those below
    the same folders that are gone are taken out. Documents are written whole: after a run that was killed,
    the next one goes on with those that are missing.

    Args:
        store: the file.
        documents: files, and folders whose documents are taken.
        choices: of a new store; an existing one has its own, and refuses others.
        progress: called before the first document, and after each batch of chunks.

    Raises:
        InvalidValueError: no documents, a file that is none, a store that is damaged or was made otherwise.
            Nothing was written then, unless a file changed meanwhile.
    """
    path, choices = Path(store), choices or IndexChoices()
    files = find_documents(map(Path, documents))
    exists = path.exists() and path.stat().st_size > 0
    opened = Store(path) if exists else None
    try:
        if opened is not None:
            opened.check()
        known = opened.documents() if opened is not None else {}
        gone = [name for name in known if _below(name, files.roots) and not Path(name).exists()]
        if not files.documents and not gone:
            raise InvalidValueError(files.why_empty)
        changed = [file for file in files.documents if known.get(str(file)) != _checked_digest(file, known)]
        embedder = _embedder(opened, choices)
        held = opened.settings if opened is not None else None
        settings = choices.settings(held, embedder.model if embedder else None)
        if opened is None:
            opened = Store.create(path, settings)
        report = IndexReport(removed=len(gone), left_out=dict(files.left_out))
        report.changed = sum(str(file) in known for file in changed)
        report.added = len(changed) - report.changed
        report.unchanged = len(files.documents) - len(changed)
        if gone:
            opened.write([], gone)
        _fill(opened, changed, embedder, report, progress)
        return report
    finally:
        if opened is not None:
            opened.close()


def _embedder(store: Store | None, choices: IndexChoices) -> Embedder | None:
    if store is not None:
        return embedder_of(store.settings, choices.embedding_model, choices.pooling)
    if choices.embedding_model is None:
        if choices.pooling is not None:
            raise InvalidValueError(
                f"pooling={choices.pooling}: it needs an embedding model; give one, or leave it out"
            )
        return None
    return Embedder(choices.embedding_model, choices.pooling)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _checked_digest(file: Path, known: dict[str, str]) -> str:
    """The digest of a file; one that has changed is read as a document: if it is none, nothing is written."""
    data = file.read_bytes()
    digest = _digest(data)
    if known.get(str(file)) != digest:
        text_of(file, data)
    return digest


def _below(name: str, roots: Sequence[Path]) -> bool:
    return any(Path(name).is_relative_to(root) for root in roots)


def _fill(
    store: Store,
    files: Sequence[Path],
    embedder: Embedder | None,
    report: IndexReport,
    progress: Callable[[IndexProgress], object],
) -> None:
    """Write the documents, those of a batch of chunks in one transaction."""
    progress(IndexProgress(0, len(files), 0))
    written = 0
    for batch in _batches(store.settings, files):
        vectors: list[NDArray[np.float32]] = []
        texts = list(chain.from_iterable(document.chunks for document in batch))
        for begin in range(0, len(texts), _BATCH):
            part = texts[begin : begin + _BATCH]
            if embedder is not None:
                vectors.append(embedder.documents(part))
            progress(IndexProgress(written, len(files), report.chunks + begin + len(part)))
        store.write(_with_vectors(batch, vectors) if embedder is not None else batch)
        written += len(batch)
        report.chunks += len(texts)
        report.without_text += sum(not document.chunks for document in batch)
        progress(IndexProgress(written, len(files), report.chunks))


def _batches(settings: StoreSettings, files: Sequence[Path]) -> Iterator[list[ChunkedDocument]]:
    batch: list[ChunkedDocument] = []
    for file in files:
        data = file.read_bytes()
        chunks = split(text_of(file, data), settings.chunk_size, settings.chunk_overlap)
        batch.append(ChunkedDocument(str(file), _digest(data), chunks))
        if sum(len(document.chunks) for document in batch) >= _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _with_vectors(
    batch: Sequence[ChunkedDocument], vectors: Sequence[NDArray[np.float32]]
) -> Iterator[ChunkedDocument]:
    rows = np.concatenate(vectors) if vectors else np.zeros((0, 0), np.float32)
    begin = 0
    for document in batch:
        end = begin + len(document.chunks)
        yield ChunkedDocument(document.path, document.digest, document.chunks, rows[begin:end])
        begin = end
