"""The shapes are those of the public models, and a wrong one is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ovspec_models.shapes import SHAPES, RopeScaling, get_shape


@pytest.mark.parametrize(
    ("name", "vocab_size", "parameters"),
    [
        # What the public checkpoints count, with their own vocabularies.
        ("qwen3-0.6b", 151_936, 596_049_920),
        ("llama-3.1-8b", 128_256, 8_030_261_248),
        ("qwen3-30b-a3b", 151_936, 30_532_122_624),
    ],
)
def test_parameters_are_those_of_the_public_model(name: str, vocab_size: int, parameters: int) -> None:
    weights = get_shape(name, vocab_size=vocab_size).weight_shapes()
    assert sum(math.prod(dims) for dims in weights.values()) == parameters


@pytest.mark.parametrize("name", SHAPES)
def test_names_and_overrides(name: str) -> None:
    shape = get_shape(name)
    assert shape is SHAPES[name]
    assert (shape.name, shape.vocab_size) == (name, 32_000)
    other = get_shape(name, layers=3, vocab_size=77)
    assert (other.num_hidden_layers, other.vocab_size) == (3, 77)
    assert replace(other, num_hidden_layers=shape.num_hidden_layers, vocab_size=32_000) == shape


def test_moe_shape_for_small_machines() -> None:
    shape = get_shape("qwen3-moe-64x8")
    sizes = (shape.num_experts, shape.num_experts_per_tok, shape.num_hidden_layers)
    assert sizes == (64, 8, 8)
    assert (shape.hidden_size, shape.moe_intermediate_size) == (1024, 384)


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'qwen4-1b' is not known") as caught:
        get_shape("qwen4-1b")
    assert all(name in str(caught.value) for name in SHAPES)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("num_hidden_layers", 0, "an integer >= 1"),
        ("vocab_size", -5, "an integer >= 1"),
        ("num_key_value_heads", 3, "a divisor of the 32 query heads"),
        ("head_dim", 127, "an even number"),
        ("rope_theta", 1.0, "a number above 1"),
        ("rms_norm_eps", 0.0, "a positive number"),
        ("num_experts_per_tok", 129, "1 to 128"),
        ("num_experts_per_tok", 0, "1 to 128"),
        ("moe_intermediate_size", 0, "a positive integer"),
    ],
)
def test_bad_size_is_refused(field: str, value: float, expected: str) -> None:
    with pytest.raises(ValueError, match=f"^{field} is {value!r}, expected {expected}"):
        replace(get_shape("qwen3-30b-a3b"), **{field: value})


def test_bad_override_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^num_hidden_layers is 0"):
        get_shape("qwen3-0.6b", layers=0)
    with pytest.raises(
        ValueError, match=r"^high_freq_factor is 1\.0, expected a number above low_freq_factor"
    ):
        RopeScaling(8.0, 1.0, 1.0, 8192)
