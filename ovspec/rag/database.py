"""One SQLite file, through Python's sqlite3, or through apsw where that cannot load extensions."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from threading import RLock
from typing import Any, Protocol

from ovspec.errors import InvalidValueError

_BUSY_SECONDS = 5
# What SQLite says when the system, and no damage of the file, is at fault.
_OF_THE_SYSTEM = ("full", "readonly", "i/o", "unable to open", "memory")


class _Connection(Protocol):
    """What sqlite3 and apsw have in common."""

    def execute(self, sql: str, values: Sequence[Any] = ..., /) -> Iterable[tuple[Any, ...]]: ...

    def executemany(self, sql: str, values: Iterable[Sequence[Any]], /) -> Any: ...

    def close(self) -> None: ...


class Database:
    """A connection to a SQLite file, for any thread. Every error of SQLite is one line that names the file.

    Args:
        path: the file; it is made where `create` is set and it does not exist.
        create: whether it may be made.
    """

    def __init__(self, path: Path, create: bool = False) -> None:
        check_name(path)
        self.path = path
        self._lock = RLock()
        self._connection: _Connection
        self._errors: tuple[type[Exception], ...] = (sqlite3.Error,)
        self._loads_extensions = hasattr(sqlite3.Connection, "enable_load_extension")
        if not create and not path.is_file():
            raise InvalidValueError(
                f"{path}: no such file; `ovspec rag index --store {path} DIR` makes a store"
            )
        if not self._loads_extensions and find_spec("apsw"):
            import apsw

            self._errors, self._loads_extensions = (sqlite3.Error, apsw.Error), True
            flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
            with self._refusals():
                connection = apsw.Connection(str(path), flags=flags)
                connection.set_busy_timeout(_BUSY_SECONDS * 1000)
                self._connection = connection
        else:
            with self._refusals():
                self._connection = sqlite3.connect(
                    path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
                )

    def load_vectors(self) -> None:
        """Load the extension for vectors.

        Raises:
            InvalidValueError: a package is missing.
        """
        missing = [] if find_spec("sqlite_vec") else ["sqlite-vec"]
        missing += [] if self._loads_extensions else ["apsw, as this Python's sqlite3 loads no extensions"]
        if missing:
            raise InvalidValueError(
                f"vectors need {' and '.join(missing)}: install with `pip install 'ovspec[rag]'`"
            )
        import sqlite_vec

        connection: Any = self._connection
        with self._refusals():
            connection.enable_load_extension(True)
            connection.load_extension(sqlite_vec.loadable_path())
            connection.enable_load_extension(False)

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a statement."""
        with self._lock, self._refusals():
            return list(self._connection.execute(sql, values))

    def executemany(self, sql: str, values: Iterable[Sequence[Any]]) -> None:
        """Run a statement for every row of values."""
        with self._lock, self._refusals():
            self._connection.executemany(sql, values)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All that the block writes, or nothing of it; other threads wait for its end."""
        with self._between("BEGIN IMMEDIATE"):
            yield

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """The file as it is at the first statement of the block; others' writes wait for its end."""
        with self._between("BEGIN"):
            yield

    @contextmanager
    def _between(self, begin: str) -> Iterator[None]:
        with self._lock:
            self.execute(begin)
            try:
                yield
                self.execute("COMMIT")
            except BaseException:
                with suppress(InvalidValueError):  # SQLite may have done it
                    self.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            text = str(error)
            if "locked" in text:
                why = "another process writes to it; wait until it has ended"
            elif "closed" in text:
                why = "it was closed; open it again"
            elif any(word in text.lower() for word in _OF_THE_SYSTEM):
                why = f"it can't be read or written ({text}); mend that, or name another file"
            else:
                why = f"it is no store, or a damaged one ({text}); remove it and index again, or name another"
            raise InvalidValueError(f"{self.path}: {why}") from error


def check_name(path: Path) -> None:
    """Refuse a name that no store can hold: Linux lets names be any bytes, texts of SQLite are UTF-8.

    Raises:
        InvalidValueError: it is not UTF-8.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise InvalidValueError(f"{path}: its name is not UTF-8 ({error.reason}); rename it") from None
