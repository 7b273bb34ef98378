"""Files of OpenAI's batch format: what is asked, and what was answered already."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from ovspec_models.folder.jsonl import check_text, json_line, numbered_lines
from ovspec_models.folder.shown import shown

_EXPECTED = '{"custom_id": "...", "method": "POST", "url": "/v1/chat/completions", "body": {...}}'


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """One line of a batch: a request under a name of the user's."""

    custom_id: str
    url: str
    body: dict[str, Any]


def read_batch(path: Path) -> list[BatchEntry]:
    """The requests of a file.

    Raises:
        ValueError: it can't be read, or a line is no request; it names the line.
    """
    entries: dict[str, BatchEntry] = {}
    for number, line in numbered_lines(str(path), lambda: path.read_bytes().decode("utf-8")):
        entry = _entry(line, f"{path}, line {number}")
        if entry.custom_id in entries:
            raise ValueError(
                f"{path}, line {number}: custom_id {shown(entry.custom_id)} comes twice; give each its own"
            )
        entries[entry.custom_id] = entry
    if not entries:
        raise ValueError(f"{path}: the file holds no request; write {_EXPECTED} into each line")
    return list(entries.values())


def _entry(line: str, place: str) -> BatchEntry:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place} is no JSON ({error}); expected {_EXPECTED}") from None
    fields = value if isinstance(value, dict) else {}
    custom_id, url, body = (fields.get(name) for name in ("custom_id", "url", "body"))
    if not (isinstance(custom_id, str) and isinstance(url, str) and isinstance(body, dict)):
        raise ValueError(f"{place} is no request; expected {_EXPECTED}")
    check_text(f"{place}: custom_id", custom_id)
    if fields.get("method", "POST") != "POST":
        raise ValueError(f"{place}: method={shown(fields['method'])}; expected POST")
    return BatchEntry(custom_id, url, body)


# Of every line that `BatchOutput.write` writes.
_BEGIN = b'{"id": "batch_req_'


class BatchOutput:
    """The file of answers. What a run wrote stays, and a later run goes on behind it.

    Args:
        path: of the file, which is made if there is none.

    Attributes:
        done: names of the requests that are answered already.
        refused: those of them whose answer is an error.

    Raises:
        ValueError: another run writes it, or it belongs to another batch.
    """

    def __init__(self, path: Path, entries: list[BatchEntry]) -> None:
        self._path, self.refused = path, set[str]()
        if path.exists() and not path.is_file():
            raise ValueError(f"{path} is no regular file; give a file's name")
        self._made = not path.exists()
        try:
            self._file: BinaryIO = path.open("ab+")
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}; give a file that can be written") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.done = self._read({entry.custom_id for entry in entries})
        except BlockingIOError as error:
            self._file.close()
            raise ValueError(f"{path}: another run writes it; wait for it, or give another file") from error
        except OSError as error:
            self._file.close()
            raise ValueError(f"{path}: {error.strerror}; give a file that can be written") from error
        except ValueError:
            self._file.close()
            raise

    def _read(self, known: set[str]) -> set[str]:
        """Names of the answers in the file; a last line that was cut off is removed."""
        self._file.seek(0)
        data, done = self._file.read(), set()
        whole = data.rfind(b"\n") + 1
        for number, line in enumerate(data[:whole].split(b"\n")[:-1], 1):
            try:
                answer = json.loads(line)
                name = answer["custom_id"] if "response" in answer else None
                status = answer["response"].get("status_code") if name else None
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                name = None
            if not isinstance(name, str) or name not in known:
                what = "no answer of a batch"
                if isinstance(name, str):
                    what = f"an answer to {shown(name)}, which is not asked"
                raise ValueError(f"{self._path}, line {number}: {what}; give another file, or move this one")
            done.add(name)
            if status != 200:
                self.refused.add(name)
        if whole < len(data):
            if not data[whole:].startswith(_BEGIN[: len(data) - whole]):
                raise ValueError(f"{self._path}: its last line is no answer of a batch; give another file")
            self._file.truncate(whole)
        return done

    def __enter__(self) -> BatchOutput:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._made and not self._path.stat().st_size:
            self._path.unlink()  # the run failed before its first answer
        self._file.close()

    def write(self, custom_id: str, status: int, body: dict[str, Any]) -> None:
        """Append an answer; it is on the disk when this returns."""
        request_id = str(body.get("id", custom_id))
        response = {"status_code": status, "request_id": request_id, "body": body}
        line = {"id": f"batch_req_{request_id}", "custom_id": custom_id, "response": response, "error": None}
        self._file.write(json_line(json.dumps(line, ensure_ascii=False)).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.done.add(custom_id)
        if status != 200:
            self.refused.add(custom_id)
