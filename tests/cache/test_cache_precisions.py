"""The cache has the precision that was asked for, or the request is refused with the reason."""

from __future__ import annotations

from pathlib import Path

import openvino as ov
import pytest

from ovspec.operations.attention_config import AttentionConfig
from ovspec.runner.model_runner import ModelRunner

# Precision, mode of quantised keys, and what the keys' tensors are: element type, rows and bytes of a block.
HONOURED = [
    ("f32", None, ("f32", 32, 64)),
    ("f16", None, ("f16", 32, 64)),
    ("u8", None, ("u8", 32, 72)),
    ("u8", "BY_TOKEN", ("u8", 32, 72)),
    ("u8", "BY_CHANNEL", ("u8", 40, 64)),
]


def make(demo_ir: Path, hint: str, precision: str, mode: str | None) -> ModelRunner:
    properties = {"INFERENCE_PRECISION_HINT": hint, "KV_CACHE_PRECISION": precision}
    if mode is not None:
        properties["KEY_CACHE_QUANT_MODE"] = mode
    return ModelRunner(demo_ir / "draft", "CPU", properties=properties)


@pytest.mark.parametrize(("precision", "mode", "expected"), HONOURED)
def test_honoured_in_f32(
    demo_ir: Path, precision: str, mode: str | None, expected: tuple[str, int, int]
) -> None:
    specs = make(demo_ir, "f32", precision, mode).cache.specs
    keys = [tensor for tensor in specs if tensor.name.startswith("key_cache.")]
    assert {(tensor.element_type.get_type_name(), *tensor.block_shape[1:]) for tensor in keys} == {expected}


@pytest.mark.parametrize(
    ("hint", "precision", "mode", "message"),
    [
        ("f32", "bf16", None, "KV_CACHE_PRECISION=bf16 does not go with this INFERENCE_PRECISION_HINT"),
        ("f32", "f32", "BY_CHANNEL", "KEY_CACHE_QUANT_MODE=BY_CHANNEL is for u8 keys"),
        ("f32", "u8", "BY_ROW", "BY_ROW"),
        ("f32", "i8", None, "KV_CACHE_PRECISION=i8 is not supported"),
        ("bf16", "f32", None, "KV_CACHE_PRECISION=f32 does not go with this INFERENCE_PRECISION_HINT"),
        ("bf16", "f16", None, "the device would use bf16 for key_cache.0"),
    ],
)
def test_refused(demo_ir: Path, hint: str, precision: str, mode: str | None, message: str) -> None:
    if hint == "bf16" and "BF16" not in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("this processor does not compute in bf16")
    with pytest.raises(ValueError, match=message) as caught:
        make(demo_ir, hint, precision, mode)
    assert "\n" not in str(caught.value)


def test_the_properties_that_were_given_are_named(demo_ir: Path) -> None:
    sides = {"KEY_CACHE_PRECISION": "bf16", "VALUE_CACHE_PRECISION": "u8"}
    properties = {"INFERENCE_PRECISION_HINT": "f32", **sides}
    attention = AttentionConfig("stock")
    said = (
        "^KEY_CACHE_PRECISION=bf16, VALUE_CACHE_PRECISION=u8 does not go with this INFERENCE_PRECISION_HINT"
    )
    with pytest.raises(ValueError, match=said):
        ModelRunner(demo_ir / "draft", "CPU", attention, properties=properties)
