"""The forms in which models write calls of tools, and what reads the arguments of each."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

from ovspec.generation.grammars.structural_tags import is_written_as_text

_SCALAR = re.compile(r"[^\s,}\]]+(?=[\s,}\]])")
_MARK_OR_BRACKET = re.compile(r'\\.|["{}\[\]]', re.DOTALL)
# The rest of an object whose arguments are before its name.
_NAME_BEHIND = re.compile(r'\s*,\s*"name"\s*:\s*"(?P<name>[\w.-]{1,64})"')
_BEFORE_NAME = ',"name":"'
_PYTHON_MARK = re.compile(r"\\.|[\"'()\[\]{}]", re.DOTALL)
_PYTHON_WORD = re.compile(
    r"(?P<text>\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*')|\b(?P<key>\w+)\s*=(?!=)|\b(?P<word>true|false|null)\b",
    re.DOTALL,
)
_PYTHON_WORDS = {"true": "True", "false": "False", "null": "None"}
# What a text of Python's has in another form: line breaks, and backslashes that escape nothing.
_PYTHON_ODD = re.compile(r"\\[\\'\"abfnrtv0-7xuUN\n]|(?P<odd>[\\\n\r])")
_PARAMETER = re.compile(r"\s*<parameter=(?P<name>[^>\n]{1,64})>")
_PARAMETER_END = "</parameter>"
_FUNCTION_END = re.compile(r"\s*</function>")
# Behind the name of a call without a mark, as far as it has come.
_BEHIND_NAME = re.compile(r"(?:\[[CALL_ID]*\]?)?[A-Za-z0-9]{0,9}(?:\[[ARGS]*\]?)?")

Schemas = Mapping[str, Mapping[str, Any]]


class JsonArguments:
    """Arguments in JSON, in a text that grows; each character is read once.

    Args:
        head: what is before them.
        name: of the tool.
        schemas: of the arguments, by the names of tools.

    Attributes:
        start: where they begin.
        name: as far as it is known.
        id: of the call, where the model gives one.
        whole: the arguments as JSON in a text; `None`: they have not ended, or are no object.
        streams: whether the text of the arguments is that JSON.
    """

    streams = True

    def __init__(self, head: re.Match[str], name: str, schemas: Schemas) -> None:
        self.start, self._at = head.end(), head.end()
        self.name, self.id = name, head["id"]
        self._schema = schemas.get(name, {})
        self._depth, self._quote = 0, ""
        self.whole: str | None = None

    def read(self, text: str) -> int | None:
        """Where they end; `None`: they have not ended."""
        end = self._found(text)
        if end is not None:
            self.whole = arguments_of(text[self.start : end])
        return end

    def _found(self, text: str) -> int | None:
        if text[self.start : self.start + 1] in ("{", "[", '"'):
            return self._closed(text, _MARK_OR_BRACKET)
        scalar = _SCALAR.match(text, self.start)
        return scalar.end() if scalar else None

    def _closed(self, text: str, marks: re.Pattern[str]) -> int | None:
        """Where all brackets and quotes are closed."""
        for found in marks.finditer(text, self._at):
            mark, self._at = found[0], found.end()
            if mark in ('"', "'") and self._quote in ("", mark):
                self._quote = "" if self._quote else mark
            elif not self._quote and len(mark) == 1:
                self._depth += (mark in "{[(") - (mark in "}])")
            if self._depth == 0 and not self._quote:
                return self._at
        self._at = max(self._at, len(text) - text.endswith("\\"))
        return None


class ArgumentsBeforeName(JsonArguments):
    """Arguments in JSON, with the name behind them."""

    streams = False

    def __init__(self, head: re.Match[str], name: str, schemas: Schemas) -> None:
        super().__init__(head, "", schemas)
        self._end: int | None = None

    def read(self, text: str) -> int | None:
        """As of `JsonArguments`."""
        if self._end is None:
            self._end = super().read(text)
        if self._end is None:
            return None
        if (found := _NAME_BEHIND.match(text, self._end)) is not None:
            self.name = found["name"]
            return found.end()
        rest = "".join(text[self._end : self._end + 128].split())
        if _BEFORE_NAME.startswith(rest) or rest.startswith(_BEFORE_NAME):
            return None
        self.whole = None  # another object
        return self._end


class PythonArguments(JsonArguments):
    """Keyword arguments of Python, whose values are literals."""

    streams = False

    def read(self, text: str) -> int | None:
        """As of `JsonArguments`."""
        end = self._closed(text, _PYTHON_MARK)
        if end is not None:
            try:
                inner = _PYTHON_WORD.sub(_python_word, text[self.start + 1 : end - 1])
                self.whole = json.dumps(ast.literal_eval(f"{{{inner}}}"), allow_nan=False)
            except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
                self.whole = None
        return end


class XmlArguments(JsonArguments):
    """Arguments in tags; their types are those of the schema."""

    streams = False

    def __init__(self, head: re.Match[str], name: str, schemas: Schemas) -> None:
        super().__init__(head, name, schemas)
        self._values: dict[str, Any] = {}
        self._open: re.Match[str] | None = None

    def read(self, text: str) -> int | None:
        """As of `JsonArguments`."""
        while True:
            if self._open is None:
                if (ended := _FUNCTION_END.match(text, self._at)) is not None:
                    self.whole = json.dumps(self._values)
                    return ended.end()
                self._open = _PARAMETER.match(text, self._at)
                if self._open is None:
                    return None
                self._at = self._open.end()
            end = text.find(_PARAMETER_END, self._at)
            if end < 0:
                self._at = max(self._open.end(), len(text) - len(_PARAMETER_END))
                return None
            schema = self._schema.get("properties", {}).get(self._open["name"], {})
            value = text[self._open.end() : end].removeprefix("\n").removesuffix("\n")
            self._values[self._open["name"]] = _typed(value, schema)
            self._open, self._at = None, end + len(_PARAMETER_END)


# Each form by the group that holds its name: what is before the arguments, and what reads them. NAMES are
# those of the tools. Mistral's marks are special tokens, and may be no text.
_FORMS: dict[str, tuple[str, type[JsonArguments]]] = {
    "json": (r'"name"\s*:\s*"(?P<json>[\w.-]{1,64})"\s*,\s*"(?:arguments|parameters)"\s*:\s*', JsonArguments),
    "late": (r'\{\s*"(?P<late>arguments|parameters)"\s*:\s*', ArgumentsBeforeName),
    "function": (r"<function=(?P<function>[\w.-]{1,64})>\s*(?=\{)", JsonArguments),
    "xml": (r"<function=(?P<xml>[\w.-]{1,64})>(?=\s*<(?:parameter=|/function>))", XmlArguments),
    "plain": (
        r"(?:\[TOOL_CALLS\]|^|(?<=\}))\s*(?P<plain>NAMES|[\w.-]{1,64})"
        r"(?:\[CALL_ID\])?(?P<id>[A-Za-z0-9]{9})?(?:\[ARGS\])?(?=\{)",
        JsonArguments,
    ),
    "python": (r"(?:(?:^|<\|python_tag\|>)\s*\[|(?<=\))\s*,)\s*(?P<python>NAMES)(?=\()", PythonArguments),
}


class CallForms:
    """All forms, for some tools.

    Args:
        schemas: of their arguments, by their names.
    """

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        names = "|".join(map(re.escape, sorted(schemas, key=len, reverse=True)))
        self._head = re.compile(
            "|".join(f"(?:{head.replace('NAMES', names)})" for head, _ in _FORMS.values())
        )

    def next(self, text: str, start: int) -> re.Match[str] | None:
        """What is before the arguments of the first call behind a place."""
        return self._head.search(text, start)

    def reader(self, head: re.Match[str]) -> JsonArguments:
        """What reads the arguments behind it."""
        form = next(form for form in _FORMS if head[form] is not None)
        return _FORMS[form][1](head, head[form], self._schemas)

    def begins(self, text: str, finished: bool) -> bool:
        """Whether a text begins with the name of a tool that is called, or may do so when it goes on."""
        head = self._head.match(text)
        if head is not None and (head["plain"] in self._schemas or head["python"]):
            return True
        rest = text[1:].lstrip() if text.startswith("[") else text
        return not finished and any(
            name.startswith(rest) or (rest.startswith(name) and _BEHIND_NAME.fullmatch(rest, len(name)))
            for name in self._schemas
        )


def arguments_of(text: str) -> str | None:
    """The arguments of a call as JSON in a text; `None`: they are none."""
    try:
        value = json.loads(text)
        if isinstance(value, str):  # JSON in a text, as OpenAI's own interface has it
            text, value = value, json.loads(value)
    except (ValueError, RecursionError):
        return None
    return text if isinstance(value, dict) else "{}" if value is None else None


def _python_word(found: re.Match[str]) -> str:
    """A text, the name of an argument or a constant of JSON, as an entry of Python's dict has it."""
    if found["text"] is not None:
        return _PYTHON_ODD.sub(
            lambda part: repr(part["odd"])[1:-1] if part["odd"] else part[0], found["text"]
        )
    return f'"{found["key"]}":' if found["key"] is not None else _PYTHON_WORDS[found["word"]]


def _typed(text: str, schema: Any) -> Any:
    """A value of the type that its schema says; what is no JSON is text."""
    kinds = _kinds(schema)
    is_text = "string" in kinds and not (text == "null" and "null" in kinds)
    if is_text and (is_written_as_text(schema) or text in schema.get("enum", ())):
        return text
    try:
        value = json.loads(text.lower() if text in ("True", "False") else text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return text
    return text if is_text and "enum" not in schema and not isinstance(value, str) else value


def _kinds(schema: Any) -> set[str]:
    """The types that a schema allows, as far as it says so itself."""
    if not isinstance(schema, dict):
        return set()
    given = schema.get("type", [])
    inner = (kind for one in schema.get("anyOf", ()) for kind in _kinds(one))
    return {*([given] if isinstance(given, str) else given), *inner}


def _no_number(name: str) -> None:
    raise ValueError(name)
