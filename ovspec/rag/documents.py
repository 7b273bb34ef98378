"""Documents of a folder: which files there are, and their text."""

from __future__ import annotations

import io
import logging
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

from ovspec.errors import InvalidValueError
from ovspec.rag.database import check_name

_TEXT = (".txt", ".md", ".markdown")
_HTML = (".html", ".htm")
_PDF = (".pdf",)
SUFFIXES = (*_TEXT, *_HTML, *_PDF)
_KINDS = f"a document ends in {', '.join(SUFFIXES)}"


@dataclass(frozen=True, slots=True)
class Files:
    """The files of an index.

    Attributes:
        roots: the folders and files that were named, absolute.
        documents: files with a document's suffix, absolute, in order.
        left_out: the other files by suffix, and PDFs where pypdf is missing.
    """

    roots: tuple[Path, ...]
    documents: list[Path]
    left_out: Counter[str]

    @property
    def why_empty(self) -> str:
        """What is wrong where there is no document."""
        return f"{', '.join(map(str, self.roots)) or 'no folder'}: no documents there; {_KINDS}"


def find_documents(paths: Iterable[Path]) -> Files:
    """The documents among files and below folders; hidden ones, whose name begins with a dot, are left out.

    Raises:
        InvalidValueError: no such path, a file that is no document, or a name that is not UTF-8.
    """
    roots = tuple(dict.fromkeys(Path(os.path.realpath(path)) for path in paths))
    documents: dict[Path, None] = {}
    left_out: Counter[str] = Counter()
    for root in roots:
        if not root.exists():
            raise InvalidValueError(f"{root}: no such file or folder; name the one with the documents")
        if root.is_file() and not _is_document(root):
            raise InvalidValueError(f"{root} is no document: {_what_is_missing(root)}")
        for path in [root] if root.is_file() else sorted(root.rglob("*")):
            if any(part.startswith(".") for part in path.relative_to(root).parts) or not path.is_file():
                continue
            if _is_document(path):
                check_name(path)
                documents[path] = None
            else:
                left_out[path.suffix.lower() or "no suffix"] += 1
    return Files(roots, list(documents), left_out)


def text_of(path: Path, data: bytes) -> str:
    """The text of a document; empty where it has none, as a PDF of scanned pages.

    Raises:
        InvalidValueError: the file is no document of its suffix.
    """
    suffix = path.suffix.lower()
    if suffix in _PDF:
        return _pdf_text(path, data)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidValueError(
            f"{path} is no document: it is not UTF-8 ({error.reason} at byte {error.start}); convert or "
            "remove it"
        ) from None
    if "\0" in text:
        raise InvalidValueError(f"{path} is no document: it holds zero bytes; convert or remove it")
    return _html_text(text) if suffix in _HTML else text


def _is_document(path: Path) -> bool:
    suffix = path.suffix.lower()
    return suffix in SUFFIXES and (suffix not in _PDF or find_spec("pypdf") is not None)


def _what_is_missing(path: Path) -> str:
    if path.suffix.lower() in _PDF:
        return "PDFs need pypdf, install it with `pip install pypdf`"
    return _KINDS


class _Text(HTMLParser):
    """Collects the text that a browser would show; blocks end a line."""

    _HIDDEN = frozenset({"script", "style", "template", "noscript", "svg"})
    _INLINE = frozenset({"a", "abbr", "b", "cite", "code", "em", "i", "mark", "q", "s", "small", "span"}) | {
        *("strong", "sub", "sup", "u", "var", "kbd", "samp", "time", "label", "font", "wbr")
    }

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in self._HIDDEN
        self._end_line(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._end_line(tag)

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in self._HIDDEN and self._hidden > 0
        self._end_line(tag)

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        """Pass over `<![...`, where Python's parser knows some words only, and asserts for others."""
        try:
            return super().parse_marked_section(i, report)
        except AssertionError:
            return self.parse_bogus_comment(i, report)  # up to the next ">", as browsers do

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(data)

    def _end_line(self, tag: str) -> None:
        if tag not in self._INLINE:
            self.parts.append("\n")


def _html_text(markup: str) -> str:
    parser = _Text()
    parser.feed(markup)
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.parts).split("\n"))
    return "\n".join(line for line in lines if line)


def _pdf_text(path: Path, data: bytes) -> str:
    import pypdf

    # Its warnings about damage would stand beside the text, or beside the one line that refuses the file.
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    try:
        pages = pypdf.PdfReader(io.BytesIO(data)).pages
        text = "\n\n".join(page.extract_text() for page in pages)
        # A font's table may name zero, or halves of characters: pairs are joined, others replaced.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\0", " ")
    except Exception as error:  # damaged PDFs end in errors of many types
        why = str(error) or type(error).__name__
        raise InvalidValueError(f"{path} is no document: pypdf can't read it ({why}); remove it") from error
