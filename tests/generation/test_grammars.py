"""Grammars and schemas that take no time to refuse, whoever wrote them."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from ovspec.generation.grammars.ebnf import lark_of_ebnf
from ovspec.generation.grammars.grammar import Grammar

CHAIN = [f"r{number} ::= r{number + 1}" for number in range(1500)]
INTERLEAVED = [line for pair in zip(CHAIN[:750], reversed(CHAIN[750:]), strict=True) for line in pair]
HOSTILE = {
    "white space": 'root ::= "a"' + " " * 2**14,
    "open sets": "root ::= " + "[" * 2**14,
    "open texts": 'root ::= "a" ' + '\\"' * 2**13,
    "comments": 'root ::= "a"\n' + "#\n" * 2**13 + '| "b"',
    "chain": "\n".join(['root ::= r0\nr1500 ::= "a"', *CHAIN]),
    "chain from its end": "\n".join(['root ::= r0\nr1500 ::= "a"', *reversed(CHAIN)]),
    "chain to and fro": "\n".join(['root ::= r0\nr1500 ::= "a"', *INTERLEAVED]),
    "brackets": "root ::= " + "(" * 4000 + '"a"' + ")" * 4000,
    "two rules of one name": 'root ::= start\nstart ::= "a"',
}


def tried(make: Callable[[], object]) -> tuple[str, float]:
    """The refusal, if there is one, and the seconds of the processor that it took."""
    began, message = time.thread_time(), ""
    try:
        make()
    except ValueError as error:
        message = str(error)
    return message, time.thread_time() - began


@pytest.mark.parametrize("name", HOSTILE)
def test_a_grammar_of_16_kb_takes_its_parsing_at_most(name: str) -> None:
    message, seconds = tried(lambda: lark_of_ebnf(HOSTILE[name]))
    assert "\n" not in message and len(message) < 300 and seconds < 1.5


def test_comments_and_line_breaks_inside_of_rules() -> None:
    text = '# first\nroot ::= a # "x"\n  # more\n\n  | "#" [#"] # last\n# next\na ::= "b"\r\n'
    assert lark_of_ebnf(text) == lark_of_ebnf('root ::= a | "#" [#"]\na ::= "b"')


def test_a_schema_that_leads_to_itself_again_and_again() -> None:
    deep: dict[str, object] = {"$ref": "#/$defs/x"}
    many = {f"p{number}": {"type": "object"} for number in range(1000)}
    node = {"type": "object", "properties": {**many, "z": deep}, "required": [*many, "z"]}
    schema = {"$defs": {"x": node}, "anyOf": [deep] * 5000}
    assert tried(lambda: Grammar.of_json_schema(schema, "f"))[1] < 1.5


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        ({"type": "json_schema", "json_schema": {"$ref": "#"}}, "no JSON satisfies"),
        ({"type": "json_schema", "json_schema": [1]}, "expected a JSON schema"),
        ({"type": "qwen_xml_parameter", "json_schema": "{"}, "it is no JSON"),
        ({"type": "k" * 5000}, "expected one of"),
        (
            {"type": "sequence", "elements": [{"type": "any_text"}, {"type": "const_string", "value": ""}]},
            "any_text ends with",
        ),
    ],
)
def test_tags_that_can_not_be_followed(tag: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        Grammar.of_tag(tag, "response_format")
    assert len(str(refused.value)) < 400
