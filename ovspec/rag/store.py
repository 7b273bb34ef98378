"""The store: documents in chunks, found by words and by vectors, in one SQLite file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovspec.errors import InvalidValueError
from ovspec.rag.database import Database
from ovspec.rag.embedder import EmbeddingModel

_APPLICATION_ID = 0x6F767267  # "ovrg"
_VERSION = 1
# Of reciprocal rank fusion: how much less a second place counts than a first.
_RANK_OFFSET = 60
# Places of each list that are fused, for a document that is wanted.
_LISTED = 5
_MOST_NEAREST = 4096  # of sqlite-vec
_TABLES = (
    "CREATE TABLE settings (json TEXT NOT NULL)",
    "CREATE TABLE documents (id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, digest TEXT NOT NULL)",
    "CREATE TABLE chunks (id INTEGER PRIMARY KEY, document INTEGER NOT NULL REFERENCES documents(id), "
    "position INTEGER NOT NULL, text TEXT NOT NULL, UNIQUE (document, position))",
    "CREATE VIRTUAL TABLE words USING fts5(text, content='chunks', content_rowid='id')",
    "CREATE TRIGGER chunk_in AFTER INSERT ON chunks BEGIN "
    "INSERT INTO words(rowid, text) VALUES (new.id, new.text); END",
    "CREATE TRIGGER chunk_out AFTER DELETE ON chunks BEGIN "
    "INSERT INTO words(words, rowid, text) VALUES ('delete', old.id, old.text); END",
)
# In how many chunks each word stands; FTS5 reads it off its own index.
_VOCABULARY = "CREATE VIRTUAL TABLE temp.vocabulary USING fts5vocab(main, words, row)"
_VECTORS = "CREATE VIRTUAL TABLE vectors USING vec0(embedding float[{}] distance_metric=cosine)"


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """What all chunks of a store have in common.

    Attributes:
        chunk_size: characters of a chunk at most.
        chunk_overlap: of them, how many a chunk may repeat of the one before it.
        embedding: the model of the vectors; `None`: the store finds by words alone.
    """

    chunk_size: int
    chunk_overlap: int
    embedding: EmbeddingModel | None = None

    @classmethod
    def of(cls, text: str) -> StoreSettings:
        """The settings that a store holds as JSON."""
        fields = json.loads(text)
        embedding = fields["embedding"] and EmbeddingModel(**fields["embedding"])
        return cls(int(fields["chunk_size"]), int(fields["chunk_overlap"]), embedding)


@dataclass(frozen=True, slots=True)
class ChunkedDocument:
    """A document as the store keeps it.

    Attributes:
        digest: of the file's bytes.
        chunks: its text.
        vectors: f32 `[chunks, dimensions]`; `None` in a store without them.
    """

    path: str
    digest: str
    chunks: Sequence[str]
    vectors: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """A chunk that was found.

    Attributes:
        path: of its document.
        position: which chunk of the document it is, from 0.
        score: the sum of 1 / (60 + place) over the lists of words and of vectors; the highest is the first.
        vector: f32 `[dimensions]`; `None` in a store without them.
    """

    path: str
    position: int
    text: str
    score: float
    vector: NDArray[np.float32] | None = None


class Store:
    """A store that exists; `create` makes one. `close` it, or use it in a `with` block; threads may share it.

    Raises:
        InvalidValueError: no such file, no store, a damaged one, or a package for its vectors is missing.
    """

    def __init__(self, path: str | Path) -> None:
        self._database = Database(Path(path))
        try:
            self._check()
            rows = self._database.execute("SELECT json FROM settings")
            self.settings = self._settings(rows)
            if self.settings.embedding is not None:
                self._database.load_vectors()
            self._database.execute(_VOCABULARY)
        except BaseException:
            self._database.close()
            raise

    @classmethod
    def create(cls, path: Path, settings: StoreSettings) -> Store:
        """Make an empty store; a file is there afterwards only with all that a store needs.

        Raises:
            InvalidValueError: the file can't be written, or holds something already.
        """
        if path.exists() and path.stat().st_size:
            raise InvalidValueError(f"{path} exists already; name another file")
        database = Database(path, create=True)
        try:
            if settings.embedding is not None:
                database.load_vectors()
            with database.transaction():
                if database.execute("SELECT 1 FROM sqlite_master LIMIT 1"):
                    raise InvalidValueError(f"{path}: another process made it meanwhile; index again")
                for statement in _TABLES:
                    database.execute(statement)
                if settings.embedding is not None:
                    database.execute(_VECTORS.format(settings.embedding.dimensions))
                database.execute("INSERT INTO settings VALUES (?)", (json.dumps(asdict(settings)),))
                database.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                database.execute(f"PRAGMA user_version = {_VERSION}")
        except BaseException:
            database.close()
            if not path.stat().st_size:
                path.unlink()
            raise
        database.close()
        return cls(path)

    @property
    def path(self) -> Path:
        """The file."""
        return self._database.path

    def documents(self) -> dict[str, str]:
        """The digest of every document by its path."""
        return dict(self._database.execute("SELECT path, digest FROM documents"))

    def write(self, documents: Iterable[ChunkedDocument], removed: Iterable[str] = ()) -> None:
        """Put documents in, in place of what the store has of them, and take the removed ones out.

        All of it is written or, where the process ends before, nothing.
        """
        with self._database.transaction():
            for path in removed:
                self._remove(path)
            for document in documents:
                self._remove(document.path)
                self._add(document)

    def check(self) -> None:
        """Read the whole file.

        Raises:
            InvalidValueError: it is damaged.
        """
        (found,) = self._database.execute("PRAGMA quick_check(1)")[0]
        if found != "ok":
            raise InvalidValueError(f"{self.path}: the store is damaged ({found}); remove it and index again")

    def search(
        self, question: str, num_documents: int, vector: NDArray[np.float32] | None = None
    ) -> list[Hit]:
        """The chunks that fit a question best, the best first.

        Args:
            question: its words are looked up, any of them.
            num_documents: chunks wanted; fewer come where the store has no more that fit.
            vector: f32 `[dimensions]` of the question; nearest vectors are looked up too where it is given.

        Raises:
            InvalidValueError: a vector of another model or for a store without, more chunks than sqlite-vec
                finds, or the store is damaged.
        """
        if vector is not None:
            self._check_vector(vector, num_documents)
        with self._database.snapshot():  # else another process may take out what was found
            return self._search(question, num_documents, vector)

    def _check_vector(self, vector: NDArray[np.float32], num_documents: int) -> None:
        if (model := self.settings.embedding) is None:
            raise InvalidValueError("vector=...: the store has words alone; leave it out, or index anew")
        if vector.shape != (model.dimensions,):
            raise InvalidValueError(
                f"vector=...: it has the shape {vector.shape}, expected ({model.dimensions},), of the model "
                f"in {model.folder}"
            )
        if num_documents > _MOST_NEAREST:
            raise InvalidValueError(
                f"num_documents={num_documents}: expected {_MOST_NEAREST} at most, sqlite-vec finds no more"
            )

    def _search(self, question: str, num_documents: int, vector: NDArray[np.float32] | None) -> list[Hit]:
        lists = [self._by_words(question, _LISTED * num_documents)]
        if vector is not None:
            lists.append(self._by_vector(vector, min(_LISTED * num_documents, _MOST_NEAREST)))
        scores: dict[int, float] = {}
        for found in lists:
            for place, chunk in enumerate(found):
                scores[chunk] = scores.get(chunk, 0.0) + 1.0 / (_RANK_OFFSET + place + 1)
        best = sorted(scores, key=lambda chunk: (-scores[chunk], chunk))[:num_documents]
        return [self._hit(chunk, scores[chunk]) for chunk in best]

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check(self) -> None:
        """Refuse a file that is no store of this version."""
        own = self._database.execute("PRAGMA application_id")[0][0] == _APPLICATION_ID
        if not own:
            raise InvalidValueError(f"{self.path} is no store; `ovspec rag index --store FILE DIR` makes one")
        version = self._database.execute("PRAGMA user_version")[0][0]
        if version != _VERSION:
            raise InvalidValueError(
                f"{self.path} is a store of version {version}, this ovspec reads {_VERSION}; index again "
                "into a new file"
            )

    def _settings(self, rows: Sequence[tuple[Any, ...]]) -> StoreSettings:
        try:
            ((text,),) = rows
            return StoreSettings.of(text)
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidValueError(
                f"{self.path}: the store is damaged (its settings can't be read); remove it and index again"
            ) from error

    def _remove(self, path: str) -> None:
        known = self._database.execute("SELECT id FROM documents WHERE path = ?", (path,))
        for (document,) in known:
            if self.settings.embedding is not None:
                chunks = "SELECT id FROM chunks WHERE document = ?"
                self._database.execute(f"DELETE FROM vectors WHERE rowid IN ({chunks})", (document,))
            self._database.execute("DELETE FROM chunks WHERE document = ?", (document,))
            self._database.execute("DELETE FROM documents WHERE id = ?", (document,))

    def _add(self, document: ChunkedDocument) -> None:
        execute = self._database.execute
        row = "INSERT INTO documents(path, digest) VALUES (?, ?) RETURNING id"
        ((number,),) = execute(row, (document.path, document.digest))
        chunk = "INSERT INTO chunks(document, position, text) VALUES (?, ?, ?) RETURNING id"
        ids = [execute(chunk, (number, place, text))[0][0] for place, text in enumerate(document.chunks)]
        if document.vectors is not None:
            rows = zip(ids, document.vectors, strict=True)
            self._database.executemany(
                "INSERT INTO vectors(rowid, embedding) VALUES (?, ?)",
                [(number, vector.astype(np.float32).tobytes()) for number, vector in rows],
            )

    def _by_words(self, question: str, limit: int) -> list[int]:
        words = list(dict.fromkeys(re.findall(r"\w+", question.lower())))
        if not words:
            return []
        # BM25 gives next to no weight to words of more than half of the chunks, but ranks all of these.
        (most,) = self._database.execute("SELECT count(*) / 2 FROM chunks")[0]
        count = "SELECT doc FROM temp.vocabulary WHERE term = ?"
        common = {word for word in words for (n,) in self._database.execute(count, (word,)) if n > most}
        found = self._matching([word for word in words if word not in common], limit)
        # In a small store a word of most chunks may be all that a question has in common with it.
        return found if len(found) == limit else self._matching(words, limit)

    def _matching(self, words: Sequence[str], limit: int) -> list[int]:
        """Chunks with any of the words, the best first."""
        query = " OR ".join(f'"{word}"' for word in words)
        found = "SELECT rowid FROM words WHERE words MATCH ? ORDER BY rank LIMIT ?"
        return [number for (number,) in self._database.execute(found, (query, limit))] if words else []

    def _by_vector(self, vector: NDArray[np.float32], limit: int) -> list[int]:
        found = "SELECT rowid FROM vectors WHERE embedding MATCH ? AND k = ? ORDER BY distance"
        rows = self._database.execute(found, (vector.astype(np.float32).tobytes(), limit))
        return [number for (number,) in rows]

    def _hit(self, chunk: int, score: float) -> Hit:
        row = (
            "SELECT path, position, text FROM chunks JOIN documents ON documents.id = document "
            "WHERE chunks.id = ?"
        )
        rows = self._database.execute(row, (chunk,))
        vector = None
        if self.settings.embedding is not None:
            stored = self._database.execute("SELECT embedding FROM vectors WHERE rowid = ?", (chunk,))
            vector = np.frombuffer(stored[0][0], np.float32) if stored else None
        if not rows or (vector is None and self.settings.embedding is not None):
            raise InvalidValueError(f"{self.path}: the store is damaged; remove it and index again")
        ((path, position, text),) = rows
        return Hit(path, position, text, score, vector)
