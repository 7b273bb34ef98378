"""Drafts of several steps in one graph are those of as many passes, and so is what is accepted of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops
from openvino_genai import GenerationConfig
from settings import F32
from tiers import by_tier

from ovspec.drafters import AssistantDrafter
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.request import Request
from ovspec.generation.generation_config import GenerationSettings, resolve, updated
from ovspec.generation.metrics import RawPerfMetrics
from ovspec.generation.sequence import Sequence
from ovspec.runtime import background_compile, unrolled_steps
from ovspec.runtime.attention_config import AttentionConfig
from ovspec.runtime.backends import Backends
from ovspec.runtime.draft_runner import draft_runner
from ovspec.runtime.fixed_compilers import FixedCompilers
from ovspec.runtime.model_runner import ModelRunner
from ovspec.runtime.unrolled_steps import UnrolledSteps, unrolled

VOCAB, NEW_TOKENS = 4096, 90
SAMPLED: dict[str, Any] = {"do_sample": True, "temperature": 0.8, "rng_seed": 5}
TEXT = np.random.default_rng(0).integers(2, VOCAB, 45).tolist()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_compile, "PASSES", 2)


# In f32, since the plugin rounds logits in bf16 before it compares them: two may be equal then.
def drafter_of(
    folder: Path, vocab_size: int = VOCAB, backend: Any = "native", **properties: str
) -> AssistantDrafter:
    attention = AttentionConfig(backend)
    backends = Backends.resolve(folder / "draft", properties={**F32, **properties}, attention=attention)
    return AssistantDrafter(draft_runner(folder / "draft", backends, 1), vocab_size, 512)


def steps_of(drafter: AssistantDrafter) -> UnrolledSteps:
    assert drafter._unrolled is not None
    return drafter._unrolled


def settings_of(**options: Any) -> GenerationSettings:
    given = {"max_new_tokens": NEW_TOKENS, "ignore_eos": True, "num_assistant_tokens": 4, **options}
    return resolve(updated(GenerationConfig(), given), (), has_draft=True)


def rounds(drafter: AssistantDrafter, each: Callable[[], object], **options: Any) -> list[list[int]]:
    """What is proposed for a text that goes on with some of each draft: none, one or all of it."""
    sequence, found = Sequence.start(TEXT, 4000, settings_of(**options), 0), []
    for number in range(30):
        tokens = drafter.propose([sequence], [4])[0].tokens
        found.append(tokens)
        sequence.append([*tokens[: (0, 4, 1, 3)[number % 4]], 7 + number])
        each()
    drafter.release(sequence)
    return found


@pytest.mark.parametrize(
    ("vocab_size", "temperature"),
    by_tier(
        product((VOCAB, 900, VOCAB + 64), (0.0, SAMPLED["temperature"], 1.7)),
        [(VOCAB, 1.7), (900, 0.0), (VOCAB + 64, SAMPLED["temperature"])],
    ),
)
def test_they_are_those_of_passes(demo_ir: Path, vocab_size: int, temperature: float) -> None:
    options = {**SAMPLED, "temperature": temperature} if temperature else {}
    drafter, used = drafter_of(demo_ir, vocab_size), []
    steps, plain = steps_of(drafter), drafter_of(demo_ir, vocab_size)

    def note() -> None:
        steps.wait()
        used.append(steps.duration > 0.0)

    plain._unrolled = None
    assert rounds(drafter, note, **options) == rounds(plain, lambda: None, **options)
    assert used == [False] * 2 + [True] * 28  # the first two are counted


@pytest.mark.parametrize("options", [{}, SAMPLED])
def test_shorter_drafts_take_the_graph_of_more_steps(demo_ir: Path, options: dict[str, Any]) -> None:
    """Down to half of its steps; the next draft does not see what was drafted beyond."""
    drafter, plain = drafter_of(demo_ir), drafter_of(demo_ir)
    steps, plain._unrolled = steps_of(drafter), None
    sequences = [Sequence.start(TEXT, 4000, settings_of(**options), 0) for _ in range(2)]
    for number, count in enumerate((4, 4, 4, 3, 2, 4, 1, 3, 4)):
        drafts = [d.propose([s], [count])[0].tokens for d, s in zip((drafter, plain), sequences, strict=True)]
        assert drafts[0] == drafts[1] and len(drafts[0]) == count
        for sequence in sequences:
            sequence.append([*drafts[0][: number % 3], 7 + number])
        steps.wait()
    used = {key: asked.graph is not None for key, asked in steps._graphs._asked.items()}
    assert used["4 drafting steps"] and not used["3 drafting steps"]  # asked for twice
    assert steps.find(2) is steps.find(4) and steps.find(1) is None and steps.find(2, most=3) is None


@pytest.mark.parametrize("options", [pytest.param({}, marks=pytest.mark.slow), SAMPLED])
def test_as_much_is_accepted(demo_ir: Path, options: dict[str, Any]) -> None:
    target, drafter = ModelRunner(demo_ir), drafter_of(demo_ir)
    engine = LLMEngine(target, drafter)

    def answer() -> tuple[list[int], RawPerfMetrics]:
        request = Request("one", TEXT, settings_of(**options))
        return engine.generate([request])["one"], request.metrics

    answer()
    steps_of(drafter).wait()
    tokens, metrics = answer()
    assert steps_of(drafter).duration > 0.0
    drafter._unrolled = None
    plain, expected = answer()
    assert tokens == plain
    assert metrics.accepted_lengths == expected.accepted_lengths
    assert metrics.proposed_lengths == expected.proposed_lengths


OTHERS: list[dict[str, Any]] = [
    {**SAMPLED, "top_p": 0.9},
    {**SAMPLED, "top_k": 5},
    {**SAMPLED, "min_p": 0.1},
    {"repetition_penalty": 1.2},
    {"max_new_tokens": 2000, "min_new_tokens": 1000, "stop_token_ids": {5}, "ignore_eos": False},
    {"acceptance_threshold": 0.5},
    {**SAMPLED, "acceptance_rule": "block"},
    {"num_assistant_tokens": None, "assistant_confidence_threshold": 0.4},
]


@pytest.mark.parametrize("options", OTHERS)
def test_settings_that_need_more_than_logits_take_passes(demo_ir: Path, options: dict[str, Any]) -> None:
    drafter = drafter_of(demo_ir)
    steps = steps_of(drafter)
    rounds(drafter, steps.wait, **options)
    assert steps.duration == 0.0


def test_drafts_whose_cache_is_not_ours_to_write_take_passes(demo_ir: Path) -> None:
    assert drafter_of(demo_ir, backend="stock")._unrolled is None
    assert drafter_of(demo_ir, KV_CACHE_PRECISION="f16")._unrolled is None
    assert drafter_of(demo_ir, KV_CACHE_PRECISION="u8")._unrolled is not None


def test_a_long_prompt_behind_a_short_text(demo_ir: Path) -> None:
    """The cache grows while the prompt is read, and a graph for its old size is there."""
    drafter, plain = drafter_of(demo_ir), drafter_of(demo_ir)
    steps, plain._unrolled = steps_of(drafter), None
    rounds(drafter, steps.wait)
    assert steps.duration > 0.0 and drafter.runner.cache.capacity == 64
    text = np.random.default_rng(1).integers(2, VOCAB, 2200).tolist()
    found = []
    for one in (drafter, plain):
        sequence = Sequence.start(text, 4000, settings_of(), 0)
        found.append([])
        for number in range(4):
            found[-1].append(one.propose([sequence], [4])[0].tokens)
            sequence.append([*found[-1][-1][:number], 7 + number])
            steps.wait()
        one.release(sequence)
    assert drafter.runner.cache.capacity > 64 and found[0] == found[1]


@pytest.mark.parametrize("properties", [{"KV_CACHE_PRECISION": "u8"}, {"INFERENCE_NUM_THREADS": "2"}])
def test_other_caches_and_threads(demo_ir: Path, properties: dict[str, str]) -> None:
    drafter, plain = drafter_of(demo_ir, **properties), drafter_of(demo_ir, **properties)
    steps, plain._unrolled = steps_of(drafter), None
    assert rounds(drafter, steps.wait) == rounds(plain, lambda: None)
    assert steps.duration > 0.0


def test_drafts_take_passes_where_the_cache_has_to_grow(demo_ir: Path) -> None:
    """Then a graph is compiled for its new size."""
    drafter, plain, used = drafter_of(demo_ir), drafter_of(demo_ir), []
    steps, plain._unrolled = steps_of(drafter), None
    text = np.random.default_rng(1).integers(2, VOCAB, 2030).tolist()
    sequences = [Sequence.start(text, 4000, settings_of(), 0) for _ in range(2)]
    for number in range(12):
        steps.duration = 0.0
        drafts = [d.propose([s], [4])[0].tokens for d, s in zip((drafter, plain), sequences, strict=True)]
        assert drafts[0] == drafts[1]
        used.append((steps.duration > 0.0, drafter.runner.cache.capacity))
        for sequence in sequences:
            sequence.append([*drafts[0][: number % 4], 7 + number])
        steps.wait()
    before, after = (sum(on for on, capacity in used if capacity == blocks) for blocks in (64, 128))
    assert before and after
    assert [on for on, _ in used].count(False) <= 2 + 2  # counted, and where the cache grows


def test_a_graph_with_other_tokens_is_not_used(demo_ir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def negated(model: ov.Model, *given: Any) -> ov.Model:
        other = model.clone()
        result = other.get_results()[0].input(0)
        logits = ops.negative(result.get_source_output()).output(0)
        result.get_source_output().get_tensor().set_names(set())
        logits.get_tensor().set_names({"logits"})
        result.replace_source_output(logits)
        other.validate_nodes_and_infer_types()
        return unrolled(other, *given)

    monkeypatch.setattr(unrolled_steps, "unrolled", negated)
    drafter = drafter_of(demo_ir)
    steps = steps_of(drafter)
    rounds(drafter, steps.wait)
    assert steps.duration == 0.0


def test_drafts_go_on_where_none_can_be_compiled(demo_ir: Path, caplog: pytest.LogCaptureFixture) -> None:
    drafter = drafter_of(demo_ir)
    steps = steps_of(drafter)
    assert steps.runner.fixed_graphs is not None

    def fails(model: ov.Model) -> ov.CompiledModel:
        raise MemoryError("no memory for another graph")

    steps.runner.fixed_graphs.compilers = FixedCompilers(fails, None, 1)
    rounds(drafter, steps.wait)
    assert steps.duration == 0.0
    messages = [record.getMessage() for record in caplog.records]
    expected = (
        "ovspec: no graph is compiled for 4 drafting steps (no memory for another graph); "
        "its passes go on as before"
    )
    assert messages.count(expected) == 1


@pytest.mark.parametrize("threads", [1, 3])
def test_linear_layers_of_a_round_share_threads(
    demo_ir: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    drafter, seen = drafter_of(demo_ir), dict[int, set[int]]()
    steps = steps_of(drafter)
    fixed = steps.runner.fixed_graphs
    assert fixed is not None
    alone = fixed.compilers.fewest

    def noted(model: ov.Model) -> ov.CompiledModel:
        linear = [node for node in model.get_ops() if node.get_type_name() == "Linear"]
        seen[len(linear)] = {node.get_attributes()["threads"] for node in linear}
        return alone(model)

    fixed.compilers = FixedCompilers(noted, None, threads)
    rounds(drafter, steps.wait)
    assert steps.duration > 0.0
    assert seen[max(seen)] == {0 if threads == 1 else threads}  # of the graph of all steps
