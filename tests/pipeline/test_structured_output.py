"""Answers have the form that was asked for, whoever drafts and however drafts are verified."""

from __future__ import annotations

import functools
import json
import random
from itertools import product
from typing import Any

import openvino_genai
import pytest
from openvino_genai import GenerationFinishReason, StructuralTagItem, StructuralTagsConfig
from openvino_genai import StructuredOutputConfig as Form
from pipeline.schemas import random_object, satisfies
from prompts import PROMPTS
from settings import F32
from tiers import by_tier

import ovspec
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.requests.request import Request
from ovspec.generation.grammars.grammar import Grammar
from ovspec.generation.grammars.grammars import Grammars
from ovspec.sampling.constraint import Constraint, GrammarError
from ovspec.schedule.schedule import Plan, Schedule, StepOutcome, StepState
from ovspec_models import demo_pair_path

SAMPLED = {"do_sample": True, "temperature": 1.0, "rng_seed": 5}
TREE = {"tree_depth": 3, "branching_factor": 2, "num_assistant_tokens": 8}
# The default budgets read all of these short texts: nothing would be drafted or committed.
SMALL = ovspec.SparseVerify(L0=16)


def _model(folder: str) -> dict[str, Any]:
    """A draft model or head that drafts alone."""
    return {"draft_model": folder, "drafter": "assistant"}


# A pipeline's arguments, and options of its calls.
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({"drafter": "none"}, {}),
    "assistant": (_model("draft"), {}),
    "assistant trees": (_model("draft"), TREE),
    "commit": ({**_model("draft"), "verify": ovspec.CommitVerify(SMALL, 16)}, {"num_assistant_tokens": 4}),
    "eagle3": (_model("eagle3"), {}),
    "eagle3 trees": (_model("eagle3"), TREE),
    "prompt_lookup": ({"drafter": "prompt_lookup"}, {}),
    "suffix": ({"drafter": "suffix"}, {}),
    "layer_skip": ({"drafter": "layer_skip"}, {}),
    "sparse_self": ({"drafter": ovspec.drafters.SparseSelf(SMALL)}, {"num_assistant_tokens": 4}),
}
FAST = 2


@functools.lru_cache(2)
def pipeline_of(way: str) -> ovspec.LLMPipeline:
    folder, arguments = demo_pair_path(), dict(WAYS[way][0])
    if "draft_model" in arguments:
        arguments["draft_model"] = ovspec.draft_model(folder / arguments["draft_model"])
    return ovspec.LLMPipeline(folder, "CPU", **arguments, **F32)


@functools.cache
def plain_text(seed: int, sampled: bool) -> str:
    return check(pipeline_of("plain"), seed, sampled, {})


def check(pipeline: ovspec.LLMPipeline, seed: int, sampled: bool, options: dict[str, Any]) -> str:
    """The answer to a random schema; it is as that says, or was cut."""
    schema = random_object(random.Random(seed))
    options = {**options, **(SAMPLED if sampled else {}), "max_new_tokens": 160}
    form = Form(json_schema=json.dumps(schema))
    results = pipeline.generate([PROMPTS[seed % 8]], structured_output_config=form, **options)
    if results.finish_reasons[0] != GenerationFinishReason.LENGTH:
        assert satisfies(json.loads(results.texts[0]), schema), (schema, results.texts[0])
    return results.texts[0]


@pytest.mark.parametrize(
    ("way", "sampled"),
    by_tier(product(WAYS, (False, True)), [(way, number % 2 == 1) for number, way in enumerate(WAYS)]),
)
def test_json_is_as_the_schema_says_and_as_without_drafts(way: str, sampled: bool) -> None:
    for seed in range(FAST):
        assert check(pipeline_of(way), seed, sampled, WAYS[way][1]) == plain_text(seed, sampled)
    # The way does as it is called.
    asked = {"structured_output_config": Form(regex="[a-z ]{300}"), "max_new_tokens": 99}
    metrics = pipeline_of(way).generate([PROMPTS[0]], **asked, **WAYS[way][1]).perf_metrics
    assert (metrics.raw_metrics.num_drafts > 0) == (way != "plain")
    assert (metrics.get_num_commits() > 0) == (way == "commit")


@pytest.mark.parametrize(
    "count", [pytest.param(100, marks=pytest.mark.slow), pytest.param(400, marks=pytest.mark.sweep)]
)
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_many_schemas(way: str, sampled: bool, count: int) -> None:
    first = FAST + count * [*product(WAYS, (False, True))].index((way, sampled))  # schemas of its own
    for seed in range(first, first + count):
        check(pipeline_of(way), seed, sampled, WAYS[way][1])


@pytest.mark.parametrize(
    "options",
    [
        SAMPLED | {"acceptance_rule": "block"},
        {"acceptance_threshold": 0.3},
        SAMPLED | {"num_return_sequences": 3},
    ],
    ids=["block", "lenient", "several"],
)
def test_every_rule_of_acceptance(options: dict[str, Any]) -> None:
    form = Form(regex="[a-f]{4}( [0-9]{3}){2}")
    results = pipeline_of("assistant").generate(
        [PROMPTS[0], PROMPTS[1]], structured_output_config=form, max_new_tokens=40, **options
    )
    for text, reason in zip(results.texts, results.finish_reasons, strict=True):
        assert len(text) == 12 and set(text[:4]) <= set("abcdef") and reason == GenerationFinishReason.STOP


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (Form(regex="ab[c]{2}!"), "abcc!"),
        (Form(json_schema='{"$ref": "#a", "$defs": {"x": {"$anchor": "a", "const": 17325}}}'), "17325"),
        (
            Form(
                json_schema='{"$id": "http://a/b", "$ref": "c", "$defs": {"x": {"$id": "c", "$ref": '
                '"#/$defs/y", "$defs": {"y": {"const": "z"}}}, "y": {"$ref": "#/$defs/y"}}}'
            ),
            '"z"',
        ),
        (Form(grammar='root ::= word ("+"  # more\n  word){2}\nword ::= "x"'), "x+x+x"),
        (Form(compound_grammar=Form.ConstString("a") + Form.Regex("b{3}")), "abbb"),
        (Form(compound_grammar=Form.Tag("<t>", Form.JSONSchema('{"const": 1}'), "</t>")), "<t>1</t>"),
        (
            Form(
                structural_tags_config=Form.TagsWithSeparator(
                    [Form.Tag("<f>", Form.ConstString("A"), "</f>")], ";", True, True
                )
            ),
            "<f>A</f>",
        ),
    ],
)
def test_a_text_that_is_given_takes_one_pass(form: Form, text: str) -> None:
    results = pipeline_of("plain").generate([PROMPTS[0]], structured_output_config=form, max_new_tokens=30)
    assert results.texts == [text]
    assert results.perf_metrics.get_num_generated_tokens() > 2
    assert len(results.perf_metrics.raw_metrics.verify_durations) <= 2


class Recording(Schedule):
    """One draft token in every step; what came of it is kept."""

    def __init__(self) -> None:
        self.outcomes: list[StepOutcome] = []

    def plan(self, state: StepState) -> Plan:
        return Plan(1)

    def observe(self, outcome: StepOutcome) -> None:
        self.outcomes.append(outcome)


def test_schedules_do_not_hear_of_drafts_that_a_grammar_wrote() -> None:
    pipeline, schedule = pipeline_of("prompt_lookup"), Recording()
    form = Form(regex="[a-z]{8} and so it goes on, as it always has [a-z]{8}")
    settings = pipeline.settings(max_new_tokens=60, structured_output_config=form)
    prompt = pipeline.chat_prompts.encode(PROMPTS[0], False)
    request = Request("one", prompt, settings, schedule=schedule)
    pipeline.engine.engine.generate([request])
    assert max(request.metrics.proposed_lengths) > 1
    assert (
        schedule.outcomes
        and max(one.proposed for outcome in schedule.outcomes for one in outcome.sequences) <= 1
    )


def test_free_text_with_tags_that_a_trigger_begins() -> None:
    tag = StructuralTagItem(begin=" there<x>", schema='{"const": 5}', end="</x>")
    form = Form(structural_tags_config=StructuralTagsConfig(structural_tags=[tag], triggers=[" there"]))
    free = str(pipeline_of("plain").generate(PROMPTS[0], max_new_tokens=40))
    text = str(pipeline_of("plain").generate(PROMPTS[0], structured_output_config=form, max_new_tokens=40))
    begin, found, _ = free.partition(" there")
    assert text == free if not found else text.startswith(f"{begin} there<x>5</x>")


def test_as_openvino_genai() -> None:
    genai = openvino_genai.LLMPipeline(demo_pair_path(), "CPU", **F32)
    form = Form(regex="(cat|dog|bird) [0-9]{2}")
    for prompt in PROMPTS[:3]:
        ours = pipeline_of("assistant").generate(prompt, structured_output_config=form, max_new_tokens=20)
        assert str(ours) == str(genai.generate(prompt, structured_output_config=form, max_new_tokens=20))


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"json_schema": "{"}, "json_schema: it is no JSON"),
        ({"json_schema": "[1]"}, "json_schema: expected a JSON schema"),
        ({"json_schema": '{"type": 5}'}, "json_schema: type must be a string"),
        ({"json_schema": "false"}, "json_schema: Unsatisfiable"),
        ({"json_schema": '{"type": "integer", "minimum": 3, "maximum": 2}'}, "json_schema: Unsatisfiable"),
        ({"json_schema": '{"$ref": "#"}'}, "json_schema: no JSON satisfies"),
        (
            {"json_schema": '{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}'},
            "json_schema: no JSON satisfies",
        ),
        ({"json_schema": '{"not": {}}'}, "json_schema: Unimplemented keys"),
        ({"regex": "["}, "regex: unclosed"),
        ({"regex": r"[^\s\S]"}, "regex: nothing satisfies it"),
        ({"grammar": 'root ::= root "a" | "a"'}, "grammar: rule 'root' begins with itself"),
        ({"grammar": 'root ::= b\nb ::= c? b "x" | "y"\nc ::= "z"'}, "grammar: rule 'b' begins with itself"),
        ({"grammar": 'root ::= "a" root'}, "grammar: no text satisfies rule 'root'"),
        ({"grammar": "root ::= x"}, "grammar: rule 'root' names 'x'"),
        ({"grammar": 'root ::= "a'}, "grammar: the grammar can't be read"),
        ({"grammar": "start: x"}, "grammar: expected a grammar in EBNF"),
    ],
)
def test_what_can_not_be_followed_is_refused_in_a_line(form: dict[str, str], message: str) -> None:
    with pytest.raises(ovspec.errors.InvalidValueError) as caught:
        pipeline_of("plain").generate(PROMPTS[0], structured_output_config=Form(**form))
    assert str(caught.value).startswith(f"structured_output_config.{message}")
    assert "\n" not in str(caught.value)


def test_the_grammar_says_where_an_answer_ends() -> None:
    for name, value in (("min_new_tokens", 3), ("ignore_eos", True)):
        options = {"max_new_tokens": 9, name: value}
        with pytest.raises(ValueError, match=f"^{name}={value}: with structured_output_config"):
            pipeline_of("plain").generate("a", structured_output_config=Form(regex="a"), **options)


class Breaking(Constraint):
    """A grammar that fails behind a few tokens."""

    def extend(self, tokens: Any) -> None:
        super().extend(tokens)
        self.left = getattr(self, "left", 4) - len(tokens)

    def ends(self, tokens: Any = ()) -> bool:
        if getattr(self, "left", 4) < len(tokens):
            raise GrammarError("it broke")
        return super().ends(tokens)


class BreakingGrammars(Grammars):
    def constraint(self, grammar: Grammar) -> Constraint:
        made = super().constraint(grammar)
        if "broken" in grammar.field:
            made.__class__ = Breaking
        return made


@pytest.mark.parametrize("way", ["plain", "assistant", "assistant trees"])
def test_a_grammar_that_fails_ends_its_own_request(way: str) -> None:
    pipeline = pipeline_of(way)
    engine: LLMEngine = pipeline.engine.engine
    tokenizer = pipeline.get_tokenizer()
    prompt = pipeline.chat_prompts.encode(PROMPTS[0], False)
    kept, engine._grammars = engine._grammars, BreakingGrammars(tokenizer, 4096, [0])
    try:
        outcomes: dict[str, Any] = {}
        requests = []
        for name, letters in (("good", "a-c"), ("broken", "a-d"), ("other", "a-e")):
            form = Form(regex=f"[{letters}]{{12}}")
            settings = pipeline.settings(max_new_tokens=30, structured_output_config=form)
            requests.append(Request(name, prompt, settings))
        for request in requests:
            object.__setattr__(request.settings.grammar, "field", request.request_id)
            engine.add_request(request)
        while engine.has_unfinished_requests:
            for output in engine.step():
                if output.finished:
                    outcomes[output.request_id] = output.error
    finally:
        engine._grammars = kept
    assert isinstance(outcomes.pop("broken"), GrammarError)
    assert outcomes == {"good": None, "other": None}
