"""The estimate of what passes read, from graphs whose weights are known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ovspec.bench.verify_cost import pass_costs
from ovspec.bench.weight_traffic import WeightTraffic
from ovspec_models import ModelInfo, demo_pair_path
from ovspec_models.shapes import ModelShape, get_shape
from ovspec_models.synthetic import build_model

TINY = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 160,
}
DENSE = replace(get_shape("llama-3.1-8b"), **TINY)
MOE = replace(
    get_shape("qwen3-moe-64x8"), **TINY, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32
)


def matrix_bytes(shape: ModelShape, experts: bool) -> int:
    """Bytes in f32 of the matrices that a pass multiplies with."""
    return 4 * sum(
        math.prod(dims)
        for name, dims in shape.weight_shapes().items()
        if len(dims) > 1 and "embed" not in name and ("experts" in name) == experts
    )


@pytest.mark.parametrize("shape", [DENSE, MOE], ids=["dense", "experts"])
def test_weights_by_who_reads_them(shape: ModelShape) -> None:
    traffic = WeightTraffic.of(build_model(shape, "fp32"))
    # Norms, shapes and single numbers are read as well.
    assert 0 <= traffic.experts - matrix_bytes(shape, experts=True) < 256
    assert 0 <= traffic.always - matrix_bytes(shape, experts=False) < 8192
    assert (traffic.num_experts, traffic.top_k) == (shape.num_experts, shape.num_experts_per_tok)


def test_rows_read_more_experts_and_never_more_than_all() -> None:
    traffic = WeightTraffic(always=100, experts=800, num_experts=8, top_k=2)
    assert traffic.read_by(1) == 100 + 800 * 2 / 8
    assert traffic.read_by(1) < traffic.read_by(8) < traffic.read_by(1000) <= 900
    assert WeightTraffic(always=100).read_by(8) == 100


def test_passes_of_windowed_layers_stop_growing() -> None:
    info = ModelInfo.read(demo_pair_path())
    token = info.kv_cache_bytes_per_token("u8", "BY_TOKEN") / 6
    windowed = replace(info, layer_windows=(512,) * 3 + (0,) * 3, max_position_embeddings=None)
    costs = {(cost.context, cost.rows): cost for cost in pass_costs(windowed, WeightTraffic(1000), 2.0)}
    assert sorted({context for context, _ in costs}) == [1024, 4096, 16384, 65536]
    far = costs[65536, 8]
    assert far.dense_bytes == int(1000 + 3 * token * (512 + 65536))
    # The default budget: 512 tokens and a tenth of the rest.
    assert far.sparse_bytes == int(1000 + 3 * token * (512 + 512 + math.ceil(0.1 * (65536 - 512))))
    assert far.dense_ms == pytest.approx(far.dense_bytes / 2e9 * 1e3)


def test_contexts_end_with_the_models_positions() -> None:
    info = replace(ModelInfo.read(demo_pair_path()), max_position_embeddings=2048)
    assert {cost.context for cost in pass_costs(info, WeightTraffic(1000), 2.0)} == {1024, 2048}
