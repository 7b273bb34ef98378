"""Heads whose own states stand for the target's draft in one graph what they draft in passes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import openvino as ov
import pytest
from drafters import test_mtp
from drafters.eagle3_models import BOUNDARIES, pair
from drafters.test_eagle3 import MODES, SAMPLING, TREE, answer, settings_of, target
from drafters.test_head_sampling import accept_everything, p_value_of
from openvino import opset15 as ops
from settings import F32
from tiers import by_tier

import ovspec
from ovspec.drafters.eagle3 import load_eagle3
from ovspec.drafters.recurrent_head import RecurrentHead
from ovspec.engine import speculation
from ovspec.engine.llm_engine import LLMEngine
from ovspec.generation.metrics import RawPerfMetrics
from ovspec.pipeline.head_model import draft_choices
from ovspec.runtime import background_compile, unrolled_steps
from ovspec.runtime.attention_config import Attention, AttentionConfig
from ovspec.runtime.backends import Backends
from ovspec.runtime.linear_backend import LinearBackend
from ovspec.runtime.unrolled_steps import UnrolledSteps, unrolled
from ovspec_models import ModelInfo
from ovspec_models.head_info import HeadInfo
from ovspec_transforms import BOUNDARY_STATES

SAMPLED: dict[str, Any] = {"do_sample": True, "temperature": 0.9, "rng_seed": 11}
#: Accepted and proposed tokens of every pass, and the text, per prompt.
Outcome = list[tuple[list[int], list[int], list[int]]]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_compile, "PASSES", 2)


def head_of(kind: str) -> RecurrentHead:
    if kind == "eagle3":
        folder = pair().folder / "draft"
        graph = Backends.resolve(folder, "CPU", F32, AttentionConfig("native"), boundaries=(1,))
        return load_eagle3(HeadInfo.read(folder), pair().info, graph, 32)
    test_mtp.reference("deepseek")
    draft = ovspec.draft_model(test_mtp.folder("deepseek"))
    choices = draft_choices(draft, pair().info, "dense", "CPU", None, F32, None)
    assert choices is not None
    drafter = choices.load(test_mtp.VOCAB, 32)
    assert isinstance(drafter, RecurrentHead)
    return drafter


def steps_of(head: RecurrentHead) -> UnrolledSteps:
    assert head._unrolled is not None
    return head._unrolled


def outcome(
    head: RecurrentHead, kind: str, prompts: list[list[int]], mode: str = "dense", **options: Any
) -> Outcome:
    boundaries = BOUNDARIES if kind == "eagle3" else (test_mtp.BOUNDARY,)
    engine, found = LLMEngine(target("llama", boundaries), head, MODES[mode], 32), []
    for prompt in prompts:
        (tokens,), (metrics,) = answer(engine, [prompt], settings_of(**options))
        found.append((tokens, metrics.accepted_lengths, metrics.proposed_lengths))
        if head._unrolled:
            head._unrolled.wait()
    return found


@pytest.mark.parametrize(
    ("kind", "mode", "sampled"),
    by_tier(
        product(("eagle3", "mtp"), MODES, (False, True)),
        [("eagle3", "commit", True)],
    ),
)
def test_as_much_is_accepted_as_of_passes(kind: str, mode: str, sampled: bool) -> None:
    head, passes, prompts = head_of(kind), head_of(kind), pair().prompts
    options = SAMPLED if sampled else {}
    passes._unrolled = None
    outcome(head, kind, prompts[:1], mode, **options)
    steps_of(head).duration = 0.0
    found = outcome(head, kind, prompts, mode, **options)
    assert steps_of(head).duration > 0.0
    assert found == outcome(passes, kind, prompts, mode, **options)
    assert sum(sum(accepted) for _, accepted, _ in found) > 10
    assert head.runner.blocks.usage == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eagle3", "mtp"])
def test_first_tokens_follow_the_exact_law(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong rule, which accepts everything, must fail the same test."""
    head, boundaries = head_of(kind), BOUNDARIES if kind == "eagle3" else (test_mtp.BOUNDARY,)
    engine = LLMEngine(target("llama", boundaries), head, "dense", 32, max_num_seqs=1)

    def found() -> tuple[float, RawPerfMetrics]:
        return p_value_of(engine, temperature=1.0, top_k=0)

    answer(engine, pair().prompts[:1], settings_of(num_assistant_tokens=3))
    steps_of(head).wait()
    p_value, metrics = found()
    assert p_value > 1e-3
    assert {0, 1} <= set(metrics.accepted_lengths)
    assert steps_of(head).duration > 0.0
    monkeypatch.setattr(speculation, "accept", accept_everything)
    assert found()[0] < 1e-6


def unmapped(model: ov.Model, caches: Any, steps: int, rows: int, ids: Any) -> ov.Model:
    """Logit i is of token i."""
    return unrolled(model, caches, steps, rows, np.arange(len(ids)))


def with_other_states(change: Callable[[ov.Output], ov.Node]) -> Callable[..., ov.Model]:
    """A graph whose states are changed."""

    def make(model: ov.Model, *given: Any) -> ov.Model:
        other = model.clone()
        result = other.output(BOUNDARY_STATES).get_node().input(0)
        states = result.get_source_output()
        changed = change(states).output(0)
        states.get_tensor().set_names(set())
        changed.get_tensor().set_names({BOUNDARY_STATES})
        result.replace_source_output(changed)
        other.validate_nodes_and_infer_types()
        return unrolled(other, *given)

    return make


WRONG: dict[str, Callable[..., ov.Model]] = {
    "mapping": unmapped,
    "states": with_other_states(ops.negative),
    "no states": with_other_states(lambda states: ops.multiply(states, np.float32(0.0))),
}


@pytest.mark.parametrize("wrong", by_tier(WRONG, ["states"]))
def test_a_wrong_graph_is_not_used(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    """And if it were, it would be noticed: its drafts are others."""
    monkeypatch.setattr(unrolled_steps, "unrolled", WRONG[wrong])
    refused, taken, prompts = head_of("eagle3"), head_of("eagle3"), pair().prompts
    expected = [outcome(refused, "eagle3", prompts) for _ in range(2)]
    assert steps_of(refused).duration == 0.0 and expected[0] == expected[1]
    monkeypatch.setattr(UnrolledSteps, "_passes", lambda *given: ANY)
    outcome(taken, "eagle3", prompts[:1])
    found = outcome(taken, "eagle3", prompts)
    assert steps_of(taken).duration > 0.0
    assert [text for text, _, _ in found] == [text for text, _, _ in expected[0]]
    assert found != expected[0]


OTHERS: list[dict[str, Any]] = [SAMPLING, {"repetition_penalty": 1.2}, TREE]


@pytest.mark.parametrize("options", OTHERS, ids=["top_p", "penalty", "tree"])
def test_what_needs_more_than_logits_takes_passes(options: dict[str, Any]) -> None:
    head = head_of("eagle3")
    outcome(head, "eagle3", pair().prompts[:2], **options)
    assert steps_of(head).duration == 0.0


def test_several_sequences_take_passes() -> None:
    head = head_of("eagle3")
    engine = LLMEngine(target("llama", BOUNDARIES), head, "dense", 32)
    prompts = pair().prompts[:2]
    for _ in range(2):
        answer(engine, [*prompts, *prompts], settings_of())
        steps_of(head).wait()
    assert steps_of(head).duration == 0.0


HINT = "INFERENCE_PRECISION_HINT"


@pytest.mark.parametrize("draft", ["draft", "eagle3"])
@pytest.mark.parametrize(
    ("attention", "linear", "properties", "products", "hint"),
    [
        (None, None, {}, "native", "f32"),
        (None, "stock", {}, "stock", "f32"),
        ("stock", None, {}, "stock", None),
        ("native", None, {}, "native", "f32"),
        ("stock", "native", {}, "native", None),
        (None, None, {HINT: "bf16"}, "native", "bf16"),
        (None, None, {"KV_CACHE_PRECISION": "bf16"}, "native", None),
    ],
)
def test_small_drafts_take_our_operations_in_f32_unless_asked_otherwise(
    demo_ir: Path,
    draft: str,
    attention: Attention | None,
    linear: LinearBackend | None,
    properties: dict[str, Any],
    products: str,
    hint: str | None,
) -> None:
    model, info = ovspec.draft_model(demo_ir / draft), ModelInfo.read(demo_ir)
    choices = draft_choices(model, info, "dense", "CPU", attention, properties, linear)
    assert choices is not None
    assert (choices.backends.linear, choices.backends.properties.get(HINT)) == (products, hint)
