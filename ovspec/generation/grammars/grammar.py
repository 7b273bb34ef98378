"""What an answer must look like, as a grammar of llguidance."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openvino_genai import StructuralTagsConfig, StructuredOutputConfig

from ovspec.errors import InvalidTypeError, InvalidValueError
from ovspec.generation.grammars.ebnf import lark_of_ebnf
from ovspec.generation.grammars.json_schema import closed_schema, schema_text
from ovspec.generation.grammars.structural_tags import lark_of_tag, tags_of_config


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar that an answer follows.

    Attributes:
        text: in llguidance's form.
        field: that it comes from, for messages.
        other: grammar whose text will do as well; `None`: none.
    """

    text: str
    field: str
    other: Grammar | None = None

    @classmethod
    def of_json_schema(cls, schema: object, field: str, spaces: str | None = None) -> Grammar:
        """JSON that a schema allows.

        Args:
            schema: as text, or as the object that it is.
            field: that it stands in.
            spaces: pattern of what may stand between the parts of JSON; `None`: one space behind a comma or
                a colon, as Python writes JSON.

        Raises:
            InvalidValueError: it is no JSON schema, or nothing satisfies it.
        """
        return cls(_lark(f"%json {schema_text(schema, field, spaces)}"), field)

    @classmethod
    def of_regex(cls, regex: object, field: str) -> Grammar:
        """Text that matches a pattern from begin to end.

        Raises:
            InvalidTypeError: it is no text.
        """
        from llguidance import LLMatcher

        return cls(LLMatcher.grammar_from_regex(_text(regex, field)), field)

    @classmethod
    def of_choice(cls, choices: Sequence[str], field: str) -> Grammar:
        """One of several texts.

        Raises:
            InvalidValueError: there are none.
        """
        if not choices:
            raise InvalidValueError(f"{field}: the list is empty; give one text at least")
        return cls(_lark(" | ".join(map(json.dumps, choices))), field)

    @classmethod
    def of_ebnf(cls, grammar: object, field: str) -> Grammar:
        """Text that a grammar in EBNF (of xgrammar and llama.cpp, its first rule `root`) derives.

        Raises:
            InvalidValueError: it can't be read, or has left recursion.
        """
        return cls(_named(field, lambda: lark_of_ebnf(_text(grammar, field))), field)

    @classmethod
    def of_tag(cls, tag: object, field: str) -> Grammar:
        """Text of a structural tag: an object of openvino_genai's, or the JSON that vLLM takes.

        Raises:
            InvalidValueError: it is none, or has parts that can't be followed.
        """
        return cls(_named(field, lambda: lark_of_tag(tag)), field)

    @classmethod
    def of_config(cls, config: StructuredOutputConfig | None) -> Grammar | None:
        """The grammar of openvino_genai's configuration; `None` where nothing is asked for.

        Raises:
            InvalidValueError: more than one thing is asked for, or one can't be followed.
        """
        if config is None:
            return None
        prefix = "structured_output_config."
        makers: Mapping[str, Callable[[Any, str], Grammar]] = {
            "json_schema": lambda given, field: cls.of_json_schema(closed_schema(given, field), field),
            "regex": cls.of_regex,
            "grammar": cls.of_ebnf,
            "structural_tags_config": cls.of_tag,
            "compound_grammar": cls.of_tag,
        }
        given = [name for name in makers if getattr(config, name) is not None]
        if len(given) != 1:
            raise InvalidValueError(
                f"structured_output_config: {' and '.join(given) or 'nothing'} is given; expected one of "
                f"{', '.join(makers)}"
            )
        value = getattr(config, given[0])
        if isinstance(value, StructuralTagsConfig):
            value = tags_of_config(value)
        return makers[given[0]](value, prefix + given[0])


def _lark(start: str) -> str:
    """What an answer is, in llguidance's form."""
    return f"%llguidance {{}}\nstart: {start}"


def _text(value: object, field: str) -> str:
    if not isinstance(value, str):
        raise InvalidTypeError(f"{field}: expected text, got {type(value).__name__}")
    return value


def _named(field: str, make: Callable[[], str]) -> str:
    """A grammar's text, its faults under the name of the field."""
    try:
        return make()
    except ValueError as error:
        raise InvalidValueError(f"{field}: {error}") from error
