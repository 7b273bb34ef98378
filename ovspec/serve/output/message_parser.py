"""The parts of a model's answer: reasoning, content, calls of tools."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from ovspec.serve.output.call_forms import CallForms, JsonArguments, Schemas, arguments_of

# Templates of Mistral's take ids of exactly nine letters and digits.
_ID_CHARACTERS = string.ascii_letters + string.digits
_THINK, _THOUGHT = "<think>", "</think>"
# What begins calls in some family, in the middle of an answer or at its start.
_MARKS = ("<tool_call>", "<function=", "[TOOL_CALLS]", "<|tool_call|>", "<|python_tag|>", "functools[")
_LONGEST_MARK = max(map(len, _MARKS))
# JSON that may be calls, as far as it has come.
_JSON_CALL = re.compile(r'[\[{][\s\[{]*(?:"(?P<key>\w*)"?)?')
_KEYS = ("name", "tool_calls", "type", "function", "id", "arguments", "parameters")
# What may be before the arguments of a call, in a text that grows.
_LONGEST_HEAD = 1024


def _new_id() -> str:
    return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(9))


@dataclass(slots=True)
class ToolCall:
    """A call of a tool.

    Attributes:
        arguments: as the model wrote them, as far as they have come.
    """

    name: str
    arguments: str
    id: str = field(default_factory=_new_id)

    @property
    def is_whole(self) -> bool:
        """Whether a client can read the arguments, of which some forms write none for none."""
        return not self.arguments or arguments_of(self.arguments) is not None


@dataclass(slots=True)
class Parts:
    """The parts of an answer."""

    reasoning: str = ""
    content: str = ""
    calls: list[ToolCall] = field(default_factory=list)


TextKind = Literal["reasoning", "content"]


@dataclass(slots=True)
class NewText:
    """New text of an answer."""

    kind: TextKind
    text: str


@dataclass(slots=True)
class NewCall:
    """What is new in a call.

    Attributes:
        index: of the call.
        call: its arguments are the new ones.
        is_first: whether nothing of it has come before.
    """

    index: int
    call: ToolCall
    is_first: bool


Piece = NewText | NewCall


def text_of(pieces: Sequence[Piece], kind: TextKind) -> str:
    """The new text of a kind."""
    return "".join(piece.text for piece in pieces if isinstance(piece, NewText) and piece.kind == kind)


class PartsStream(Protocol):
    """What is new in the parts of one answer.

    Attributes:
        calls: those that have come so far.
        num_reasoning_tokens: tokens before content and calls; `None`: the text alone is known.
    """

    calls: list[ToolCall]
    num_reasoning_tokens: int | None

    def add(self, text: str, finished: bool, tokens: Sequence[int] = ()) -> list[Piece]:
        """Take new text, and the tokens that it came of; what is new in the parts, in the answer's order."""


class MessageParser:
    """Finds the parts of one answer as it grows.

    Args:
        tools: that may be called: the schemas of their arguments, by their names.
        reasons: whether the model's template knows reasoning between <think> and </think>.
        starts_in_reasoning: whether the prompt ended with <think>.
    """

    def __init__(self, tools: Schemas, reasons: bool, starts_in_reasoning: bool) -> None:
        self._tools, self._reasons, self._starts = tools, reasons, starts_in_reasoning
        self._forms = CallForms(tools)
        self._begin: int | None = None  # of calls, where that is certain
        self._num_searched = 0  # characters without a mark
        self._first: int | None = None  # where the arguments of the first call begin
        self._whole: list[ToolCall] = []
        self._num_read = 0  # characters that no further call begins in
        self._open: JsonArguments | None = None
        self._shown: ToolCall | None = None  # the call that has begun, if a client may have seen it

    @property
    def is_plain(self) -> bool:
        """Whether all of an answer is content."""
        return not self._tools and not self._reasons

    def parse(self, text: str, finished: bool) -> Parts:
        """The parts of an answer that has come so far; the text goes on behind that of the last time.

        What is not finished may lack its end, where that could become something else; each part begins with
        what it had before.
        """
        parts = Parts()
        rest = self._take_reasoning(text, finished, parts)
        if not self._tools:
            parts.content = rest
            return parts
        begin = self._begin_of_calls(rest, finished)
        if begin is None:
            parts.content = rest if finished else _held_back(rest, _MARKS)
            return parts
        parts.calls = self._calls(rest, begin)
        if parts.calls and self._begin is None:
            # What the text began with may have been no call.
            mark = _first_mark(rest[: self._first], 0)
            self._begin = begin = begin if mark is None else mark
        if parts.calls or not finished:
            parts.content = rest[:begin].rstrip()
        else:
            parts.content = rest
        return parts

    def _take_reasoning(self, text: str, finished: bool, parts: Parts) -> str:
        """Note the reasoning; what is behind it."""
        if not self._reasons:
            return text
        body = text.lstrip()
        # A model may write the mark again that the prompt ended with.
        if not finished and len(body) < len(_THINK) and _THINK.startswith(body):
            return ""
        if not self._starts and not body.startswith(_THINK):
            return text
        body = body.removeprefix(_THINK)
        thought, found, rest = body.partition(_THOUGHT)
        if not found and not finished:
            thought = _held_back(thought, (_THOUGHT,))
        parts.reasoning = thought.strip()
        return rest.lstrip("\n")

    def _begin_of_calls(self, text: str, finished: bool) -> int | None:
        """Where calls begin, or may begin; `None`: nowhere so far."""
        if self._begin is not None:
            return self._begin
        # Before marks are looked for: arguments may have some.
        if self._begins(text.lstrip(), finished):
            return 0
        start = max(0, self._num_searched - _LONGEST_MARK)
        self._begin, self._num_searched = _first_mark(text, start), len(text)
        return self._begin

    def _begins(self, text: str, finished: bool) -> bool:
        """Whether a text begins with calls without a mark, or may do so."""
        if text and self._forms.begins(text, finished):
            return True
        json_call = _JSON_CALL.match(text)
        if json_call is None:
            return False
        key, is_open = json_call["key"], json_call.end() == len(text)
        if key is None:
            return is_open and not finished
        return key in _KEYS or (is_open and any(known.startswith(key) for known in _KEYS))

    def _calls(self, text: str, begin: int) -> list[ToolCall]:
        self._num_read = max(self._num_read, begin)
        while (head := self._forms.next(text, self._num_read)) is not None:
            if self._open is None or self._open.start != head.end():
                self._open = self._forms.reader(head)
            reader = self._open
            end = reader.read(text)
            # A stream shows it before it has ended, so a whole answer has the call too.
            is_shown = reader.name in self._tools and reader.streams and text.startswith("{", reader.start)
            if end is None:
                if not is_shown:
                    return list(self._whole)
                self._first = head.end() if self._first is None else self._first
                self._shown = replace(self._shown or _called(reader), arguments=text[reader.start :])
                return [*self._whole, self._shown]
            self._num_read = end
            arguments = reader.whole
            if arguments is None and is_shown:
                arguments = text[reader.start : end]  # no JSON: the client gets what the model wrote
            if reader.name in self._tools and arguments is not None:
                self._first = head.end() if self._first is None else self._first
                self._whole.append(replace(self._shown or _called(reader), arguments=arguments))
            self._shown = None
        self._num_read = max(self._num_read, len(text) - _LONGEST_HEAD)
        return list(self._whole)


class MessageStream:
    """A `PartsStream` of text."""

    num_reasoning_tokens: int | None = None

    def __init__(self, parser: MessageParser) -> None:
        self._parser, self._text = parser, ""
        self._sent = Parts()
        self.calls: list[ToolCall] = []

    def add(self, text: str, finished: bool, tokens: Sequence[int] = ()) -> list[Piece]:
        """As of `PartsStream`; the tokens are not looked at."""
        if self._parser.is_plain:
            return [NewText("content", text)] if text else []
        self._text += text
        now = self._parser.parse(self._text, finished)
        pieces: list[Piece] = []
        kinds: tuple[TextKind, ...] = ("reasoning", "content")
        for kind in kinds:
            before, whole = getattr(self._sent, kind), getattr(now, kind)
            if len(whole) > len(before):
                pieces.append(NewText(kind, whole[len(before) :]))
                setattr(self._sent, kind, whole)
        last = max(0, len(self.calls) - 1)  # those before it have ended
        for place, call in enumerate(now.calls[last:], last):
            is_first = place == len(self.calls)
            size = 0 if is_first else len(self.calls[place].arguments)
            if is_first or len(call.arguments) > size:
                new = replace(call, arguments=call.arguments[size:])
                pieces.append(NewCall(place, new, is_first))
            self.calls[place : place + 1] = [call]
        return pieces


def _called(reader: JsonArguments) -> ToolCall:
    """A call whose arguments have not come."""
    return ToolCall(reader.name, "", reader.id) if reader.id else ToolCall(reader.name, "")


def _first_mark(text: str, start: int) -> int | None:
    return min((at for mark in _MARKS if (at := text.find(mark, start)) >= 0), default=None)


def _held_back(text: str, marks: Collection[str]) -> str:
    """Text without an end that may be the beginning of a mark, and without spaces before it."""
    longest = max(
        (size for mark in marks for size in range(1, len(mark)) if text.endswith(mark[:size])), default=0
    )
    return text[: len(text) - longest].rstrip()
