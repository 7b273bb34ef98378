"""Grammars: those that take no time to refuse, whoever wrote them, and the masks of the others."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import openvino_genai
import pytest
from pipeline.schemas import random_object

from ovspec.generation.grammars.ebnf import lark_of_ebnf
from ovspec.generation.grammars.grammar import Grammar
from ovspec.generation.grammars.grammars import Grammars
from ovspec_models import demo_pair_path

CHAIN = [f"r{number} ::= r{number + 1}" for number in range(1500)]
INTERLEAVED = [line for pair in zip(CHAIN[:750], reversed(CHAIN[750:]), strict=True) for line in pair]
VOCAB = 4096  # of the demo pair
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
        *(({"type": kind, "elements": []}, "elements of type=.* is empty") for kind in ("or", "sequence")),
        ({"type": "triggered_tags", "triggers": ["<"], "tags": []}, "tags of type=.* is empty"),
        ({"type": "tags_with_separator", "separator": ",", "tags": []}, "tags of type=.* is empty"),
    ],
)
def test_tags_that_can_not_be_followed(tag: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        Grammar.of_tag(tag, "response_format")
    assert len(str(refused.value)) < 400


PATTERNS = ["[a-z ]{3,9}", "[A-Za-z ,.]{20}", "(a|bc|[d-z]+ )*!", "[A-Z][a-z]{0,4}", "[^a-z]{12}"]
FORMS = [
    *(Grammar.of_regex(pattern, "regex") for pattern in PATTERNS),
    *(Grammar.of_json_schema(random_object(random.Random(seed)), "schema") for seed in range(5)),
]


@pytest.mark.parametrize("grammar", FORMS, ids=range(len(FORMS)))
def test_a_mask_has_the_tokens_that_may_follow_one_by_one(grammar: Grammar) -> None:
    tokenizer = openvino_genai.Tokenizer(demo_pair_path())
    constraint = Grammars(tokenizer, VOCAB, [0]).constraint(grammar)
    rng = np.random.default_rng(1)
    for _ in range(8):
        mask = constraint.mask()
        assert mask.tolist() == [constraint.allows((), token) for token in range(VOCAB)]
        if constraint.ends() or not (going := [token for token in np.flatnonzero(mask) if token]):
            break
        constraint.extend([int(rng.choice(going))])


# A parameter's schema, with values as they are written, and with some that do not follow it.
WRITTEN: dict[str, tuple[dict[str, Any] | bool, list[str], list[str]]] = {
    "text": ({"type": "string", "title": "A"}, ["x\n<", '"x"'], []),
    "text or null": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, ["x", "null"], []),
    "text or a number": ({"type": ["string", "integer"]}, ["x", "5"], []),
    "one text": ({"type": "string", "const": "red"}, ['"red"', ' "red"\n'], ["red", '"blue"']),
    "short": ({"type": "string", "maxLength": 3}, ["", "abc", "\nabc\n"], ["abcd"]),
    "long": ({"type": "string", "minLength": 20, "maxLength": 30}, ["a" * 20], ["a" * 9, "</parameter>" * 2]),
    "short with a pattern": ({"type": "string", "pattern": "a+", "maxLength": 2}, ['"aa"'], ["aa", '"aaa"']),
    "short or null": (
        {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
        ['"abc"', "null"], ["abc", '"abcd"'],
    ),
    "a reference": ({"$ref": "#/$defs/color"}, ['"red"'], ["red", '"blue"']),
    "a reference inside": ({"type": "array", "items": {"$ref": "#/$defs/color"}}, ['["red"]'], ['["blue"]']),
    "anything": (True, ['"x"', "[1]"], ["x"]),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_parameters_in_tags_follow_their_schema_and_are_read_again(name: str) -> None:
    schema, good, bad = WRITTEN[name]
    whole = {"properties": {"a": schema}, "required": ["a"], "$defs": {"color": {"enum": ["red", "green"]}}}
    grammar = Grammar.of_tag({"type": "qwen_xml_parameter", "json_schema": whole}, "tools")
    tokenizer = openvino_genai.Tokenizer(demo_pair_path())
    grammars = Grammars(tokenizer, VOCAB, [0])
    for value in (*good, *bad):
        text = f"<parameter=a>{value}</parameter>"
        tokens = tokenizer.encode(text, add_special_tokens=False).input_ids.data.reshape(-1).tolist()
        assert tokenizer.decode(tokens) == text
        constraint = grammars.constraint(grammar)
        valid = constraint.valid(tokens)
        follows = valid == len(tokens) and bool(constraint.mask(tokens)[0])
        assert follows == (value in good), value


CALL = {"begin": '{"name": "f", "parameters": ', "content": {"type": "any_text"}, "end": "}"}
EITHER = {
    # The first has words that begin as words of the second, and ends inside of it.
    "a name": ({"properties": {"name": {"type": "string"}}, "required": ["name"]}, {"type": "tag", **CALL}),
    "numbers": ({"const": 12}, {"type": "regex", "pattern": "1[0-9]{2}( [0-9]+)*"}),
    "one begin": (
        {
            "type": "object",
            "properties": {"the name": {"const": 1}},
            "required": ["the name"],
            "additionalProperties": False,
        },
        {"type": "const_string", "value": '{"the name of it": 1}'},
    ),
    "apart": ({"enum": ["a", True]}, {"type": "const_string", "value": "[1] and more"}),
}


@pytest.mark.parametrize("name", EITHER)
def test_one_of_two_grammars_is_followed_to_its_end(name: str) -> None:
    """What may follow is what those of them allow that can read the text, also when some is taken back."""
    grammars = Grammars(openvino_genai.Tokenizer(demo_pair_path()), VOCAB, [0])
    schema, tag = EITHER[name]
    both = Grammar.of_json_schema(schema, "schema"), Grammar.of_tag(tag, "tag")

    def expected(text: list[int]) -> list[bool]:
        found = np.zeros(VOCAB, np.bool_)
        for constraint in map(grammars.constraint, both):
            for token in text:
                if constraint.ends() or not constraint.takes([token]):
                    break
                constraint.extend([token])
            else:
                found |= constraint.mask()
        return found.tolist()

    rng, text, seen = np.random.default_rng(2), list[int](), set[int]()
    constraint = grammars.constraint(replace(both[0], other=both[1]))
    forced = constraint.forced()
    assert all(grammars.constraint(one).forced()[: len(forced)] == forced for one in both)
    assert len(forced) > 3 or name != "one begin"
    for _ in range(60):
        drafted: list[int] = []
        while len(drafted) < 3:
            mask = constraint.mask(drafted)
            assert mask.tolist() == expected(text + drafted)
            token = int(rng.choice(np.flatnonzero(mask)))
            assert constraint.allows(drafted, token)
            if token == 0:
                seen.add(len(text))
                break
            assert constraint.valid([*drafted, token]) == len(drafted) + 1
            drafted.append(token)
        kept = int(rng.integers(len(drafted) + 1))
        constraint.extend(drafted[:kept])
        text += drafted[:kept]
        if rng.random() < 0.3 or constraint.ends():
            lost = int(rng.integers(1, len(text) + 1)) if text else 0
            constraint.rollback(lost)
            text = text[: len(text) - lost]
    assert seen


REPEATED = [
    "(a{1000}){1000}",
    "((a{90}){90}){90}",
    "[ab](a{1000}){1000}",
    "(x[ab]{300}){3000}",
    "(ab c){5000}",
]


@pytest.mark.parametrize("pattern", REPEATED)
def test_a_pattern_of_a_million_characters_takes_no_ones_time(pattern: str) -> None:
    """It is refused, or its tokens take the time of other grammars' tokens."""
    grammars = Grammars(openvino_genai.Tokenizer(demo_pair_path()), VOCAB, [0])
    grammars.constraint(Grammar.of_regex("a", "regex"))  # makes the vocabulary ready
    text, began, message = list[int](), time.process_time(), ""
    try:
        constraint = grammars.constraint(Grammar.of_regex(pattern, "regex"))
        for _ in range(3):
            drafted: list[int] = []
            for token in constraint.forced()[:60] or [int(constraint.mask().argmax())]:
                assert constraint.mask(drafted)[token]
                drafted.append(token)
            constraint.extend(drafted)
            text += drafted
    except ValueError as error:
        message = str(error)
    assert time.process_time() - began < 1.0
    if pattern == "(ab c){5000}":
        assert len(text) == 180 and ("ab c" * 5000).startswith(grammars._tokenizer.decode(text))
    elif not text:
        assert message.endswith("it repeats too much, or has too long a text; make it smaller")


NUMBERS: dict[str, dict[str, object]] = {
    "maximum=-9223372036854775808: expected a number of 9007": {"minimum": -(2**63), "maximum": -(2**63)},
    "exclusiveMaximum=1e+300: expected a number of 9007": {"exclusiveMaximum": 1e300},
    "maxLength=4294967296: expected a number of 4294967295": {"type": "string", "maxLength": 2**32},
    "const has 9007199254740993: expected": {"const": 2**53 + 1},
    "enum has 123456789012345678: expected": {"enum": ["a", {"id": [123456789012345678]}]},
    "multipleOf=2147483648: expected a number above 0": {"multipleOf": 2**31},
    "multipleOf=-7: expected a number above 0": {"multipleOf": -7},
    "multipleOf=inf: expected a number above 0": {"multipleOf": float("inf")},
    "multipleOf=1234.567: expected a number above 0": {"type": "number", "multipleOf": 1234.567},
}


@pytest.mark.parametrize("message", NUMBERS)
def test_numbers_that_are_too_large_are_refused(message: str) -> None:
    """llguidance rounds them, takes all memory, or ends the process."""
    schema = {"type": "object", "properties": {"a": {"type": "integer", **NUMBERS[message]}}}
    if "const" in NUMBERS[message] or "enum" in NUMBERS[message]:
        schema = {"anyOf": [NUMBERS[message]]}
    with pytest.raises(ValueError, match=re.escape(f"f: {message}")) as refused:
        Grammar.of_json_schema(schema, "f")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "fits"),
    [(str(2**63 - 1), True), (str(2**63), False), (str(-(2**63) + 1024), True), (str(-(2**63) - 1), False)],
)
def test_whole_numbers_of_64_bits(text: str, fits: bool) -> None:
    tokenizer = openvino_genai.Tokenizer(demo_pair_path())
    schema = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
    constraint = Grammars(tokenizer, VOCAB, [0]).constraint(Grammar.of_json_schema(schema, "f"))
    ids = tokenizer.encode(text, add_special_tokens=False).input_ids.data[0].tolist()
    assert (constraint._matcher.validate_tokens([*ids, 0]) == len(ids) + 1) is fits


def test_large_numbers_and_enums_that_are_followed() -> None:
    grammars = Grammars(openvino_genai.Tokenizer(demo_pair_path()), VOCAB, [0])
    for schema, begin in (
        ({"const": -(2**53)}, b"-9007199254740992"),
        ({"type": "integer", "minimum": 2**53 - 1, "maximum": 2**53 - 1}, b"9007199254740991"),
        ({"type": "number", "minimum": 0.75, "maximum": 0.75, "multipleOf": 0.25}, b"0.75"),
        ({"type": "integer", "minimum": 9990, "maximum": 19990, "multipleOf": 10_000}, b"10000"),
        ({"enum": [f"name {number}" for number in range(20000)]}, b'"name '),
    ):
        constraint = grammars.constraint(Grammar.of_json_schema(schema, "f"))
        assert constraint._matcher.compute_ff_bytes() == begin
