"""What an answer must look like, as a grammar of llguidance."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openvino_genai import StructuralTagsConfig, StructuredOutputConfig

from ovspec.errors import InvalidTypeError, InvalidValueError
from ovspec.generation.ebnf import lark_of_ebnf
from ovspec.generation.json_schema import check_ends, spacing
from ovspec.generation.structural_tags import lark_of_tag, tags_of_config


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar that an answer follows.

    Attributes:
        text: in llguidance's form.
        field: that it comes from, for messages.
    """

    text: str
    field: str

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
        return cls(grammar_text([("start", "%json " + schema_text(schema, field, spaces))]), field)

    @classmethod
    def of_regex(cls, regex: object, field: str) -> Grammar:
        """Text that matches a pattern from begin to end.

        Raises:
            InvalidTypeError: it is no text.
        """
        from llguidance import LLMatcher

        return cls(LLMatcher.grammar_from_regex(_text(regex, field)), field)

    @classmethod
    def of_choice(cls, choices: object, field: str) -> Grammar:
        """One of several texts.

        Raises:
            InvalidTypeError: it is no list of texts.
        """
        good = isinstance(choices, Sequence) and not isinstance(choices, str) and len(choices) > 0
        if not isinstance(choices, Sequence) or not good or not all(isinstance(c, str) for c in choices):
            raise InvalidTypeError(f"{field}: expected a list of texts, with one at least")
        return cls(grammar_text([("start", " | ".join(map(json.dumps, choices)))]), field)

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
            "json_schema": cls.of_json_schema,
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


def grammar_text(rules: Sequence[tuple[str, str]]) -> str:
    """Rules, the first of them `start`, in llguidance's form."""
    return "%llguidance {}\n" + "\n".join(f"{name}: {body}" for name, body in rules)


def schema_text(schema: object, field: str, spaces: str | None = None) -> str:
    """A JSON schema as text, with what stands between the parts of JSON.

    Raises:
        InvalidValueError: it is no JSON schema.
    """
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise InvalidValueError(f"{field}: it is no JSON ({error}); give a JSON schema") from None
    if not isinstance(schema, (Mapping, bool)):
        raise InvalidTypeError(f"{field}: expected a JSON schema, which is an object")
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    check_ends(schema, field)
    return json.dumps({**schema, "x-guidance": spacing(spaces)})


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
