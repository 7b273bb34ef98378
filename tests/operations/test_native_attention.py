"""Shapes that an operation of ours does not take: found before anything is compiled, and left to OpenVINO."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from openvino import opset15 as ops

import ovspec_ops
from ovspec.cache.cache import CachedSequence
from ovspec.operations.attention_config import AttentionConfig
from ovspec.operations.backends import Backends
from ovspec.operations.expert_budgets import ExpertConfig
from ovspec.passes.tables import Rows
from ovspec.proofs.promises import promises
from ovspec.runner.model_runner import ModelRunner
from ovspec_models.shapes import ModelShape, get_shape
from ovspec_models.synthetic import build_model
from ovspec_ops.common.cache_layout import why_not_taken

# Nothing is rounded but sums, in another order.
EXACT = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
}
TOLERANCE = 2e-3  # of the logits' spread; experts of 8 and 4 bits round rows to 16 bits
VOCAB = 61
SIZES: dict[str, Any] = {
    "num_hidden_layers": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 2048,
    "rope_scaling": None,
}


def dense(**sizes: Any) -> ModelShape:
    return replace(get_shape("llama-3.1-8b"), **SIZES, **sizes)


HEADS_OF_20 = dense(
    hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, head_dim=20
)


def logits(runner: ModelRunner) -> NDArray[np.float32]:
    """Of a prompt, and of verified rows behind it."""
    sequence, tokens = CachedSequence(), np.arange(40) % VOCAB
    passes = (Rows(sequence, tokens, sampled=40), Rows(sequence, tokens[:4], sampled=4))
    return np.concatenate([np.array(runner.forward([rows]).logits) for rows in passes])


@settings(max_examples=120, deadline=None)
@given(
    kv_heads=st.integers(-1, 70_000),
    k_size=st.integers(-8, 1100) | st.integers(0, 130).map(lambda n: 8 * n),
    v_size=st.integers(0, 130).map(lambda n: 8 * n),
)
def test_the_reason_is_that_of_the_operations(kv_heads: int, k_size: int, v_size: int) -> None:
    """`why_not_taken` says before a graph is made what the operations check when they are made."""
    rows, cache = ov.PartialShape([-1, -1]), ov.PartialShape([-1, -1, -1, -1])
    inputs = [ops.parameter(rows, np.float32) for _ in range(2)]
    inputs += [ops.parameter(cache, np.uint8) for _ in range(2)]
    inputs += [ops.parameter(ov.PartialShape([-1]), np.int32)]
    attributes = {"kv_heads": kv_heads, "k_size": k_size, "v_size": v_size}
    try:
        ovspec_ops.create("CacheWrite", [node.output(0) for node in inputs], attributes)
    except ValueError:
        assert why_not_taken(kv_heads, k_size, v_size)
    else:
        assert not why_not_taken(kv_heads, k_size, v_size)


@st.composite
def architectures(draw: st.DrawFn) -> tuple[ModelShape, str, int]:
    """A shape, the format of its weights and the size of their groups, which divides every row of weights."""
    fmt = draw(st.sampled_from(["fp32", "fp16", "int8", "int4"]))
    unit = draw(st.sampled_from([2, 6, 8, 10, 16, 20, 32])) if fmt == "int4" else 1
    kv_heads = draw(st.integers(1, 3))
    sizes = {
        "head_dim": draw(st.integers(4, 68).map(lambda n: 2 * n)),
        "hidden_size": unit * draw(st.integers(1, 140 // unit)),
        "num_key_value_heads": kv_heads,
        # A group divides the width of all heads.
        "num_attention_heads": kv_heads * draw(st.integers(1, 4)) * unit,
    }
    inner = unit * draw(st.integers(1, 120 // unit))
    if draw(st.booleans()):
        return dense(**sizes, intermediate_size=inner), fmt, unit
    experts = draw(st.integers(1, 5))
    routed = {"num_experts": experts, "num_experts_per_tok": draw(st.integers(1, experts))}
    shape = replace(get_shape("qwen3-30b-a3b"), **SIZES, **sizes, **routed, moe_intermediate_size=inner)
    return shape, fmt, unit


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(architecture=architectures())
def test_a_random_architecture_runs_and_computes_the_same(architecture: tuple[ModelShape, str, int]) -> None:
    shape, fmt, group_size = architecture
    model = build_model(shape, fmt, **({"group_size": group_size} if fmt == "int4" else {}))
    runner = ModelRunner(model.clone(), properties=EXACT, experts=ExpertConfig(optional=True))
    assert (runner.attention.backend == "native") == (shape.head_dim % 8 == 0)
    stock = ModelRunner(model, "CPU", AttentionConfig("stock"), EXACT, linear="stock")
    expected = logits(stock)
    assert np.abs(logits(runner) - expected).max() < TOLERANCE * expected.std()


def test_who_asks_for_native_attention_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"^attention='native': the model has heads of size 20, .*'stock'$"):
        Backends.resolve(build_model(HEADS_OF_20, "fp32"), attention=AttentionConfig("native"))


def test_the_reason_is_told(tmp_path: Path) -> None:
    """By what is promised of a folder, which `ovspec info` shows, and by the runner's metrics."""
    model = build_model(HEADS_OF_20, "fp32")
    (said,) = [line for line in ModelRunner(model.clone()).identity_breakers if line.startswith("attention")]
    assert "the model has heads of size 20, and our operations take multiples of 8 up to 1024" in said
    groups = dense(
        hidden_size=40, intermediate_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=40
    )
    runner = ModelRunner(build_model(groups, "int4", group_size=20), properties=EXACT)
    assert "groups are of 20 weights, expected a multiple of 8" in runner.identity_breakers[0]
    ov.save_model(model, tmp_path / "openvino_model.xml", compress_to_fp16=False)
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        **{name: getattr(HEADS_OF_20, name) for name in ("num_hidden_layers", "num_attention_heads")},
        **{name: getattr(HEADS_OF_20, name) for name in ("num_key_value_heads", "head_dim", "vocab_size")},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "heads of size 20" in promises(tmp_path)["default"][0]
