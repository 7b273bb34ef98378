"""What the weights of a synthetic model are: their bytes, types, randomness and scale."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from synthetic.cases import TINY_SHAPES, weight_arrays

from ovspec_models.shapes import get_shape
from ovspec_models.synthetic import build_model, weight_bytes

FORMATS = {
    "fp32": ("fp32", 128, False),
    "fp16": ("fp16", 128, False),
    "int8": ("int8", 128, False),
    "int4-asym": ("int4", 128, False),
    "int4-sym": ("int4", 128, True),
    "int4-group-32": ("int4", 32, False),
}


def _weight_constants(model: ov.Model) -> list[ov.Node]:
    constants = [node for node in model.get_ops() if node.get_type_name() == "Constant"]
    return [node for node in constants if node.get_friendly_name().startswith("self.")]


@pytest.mark.parametrize("family", TINY_SHAPES)
@pytest.mark.parametrize("format_id", FORMATS)
def test_constants_have_the_promised_bytes(family: str, format_id: str) -> None:
    shape = TINY_SHAPES[family]
    weight_format, group_size, sym = FORMATS[format_id]
    model = build_model(shape, weight_format, group_size, sym=sym)
    held = sum(node.get_byte_size() for node in _weight_constants(model))
    assert held == weight_bytes(shape, weight_format, group_size, sym)
    others = (
        sum(node.get_byte_size() for node in model.get_ops() if node.get_type_name() == "Constant") - held
    )
    assert others < 20_000


@pytest.mark.parametrize(
    ("weight_format", "sym", "expected"),
    [("int8", False, "u8"), ("int4", False, "u4"), ("int4", True, "i4"), ("fp16", False, "f16")],
)
def test_weights_have_the_compressed_type(weight_format: str, sym: bool, expected: str) -> None:
    model = build_model(TINY_SHAPES["qwen3_moe"], weight_format, sym=sym)
    types = {
        node.get_friendly_name(): node.get_element_type().get_type_name() for node in _weight_constants(model)
    }
    for part in (
        "self_attn.q_proj.weight",
        "mlp.experts.gate_proj",
        "mlp.experts.down_proj",
        "mlp.gate.weight",
    ):
        assert types[f"self.model.layers.1.{part}"] == expected
    outer = "u8" if weight_format == "int4" else expected
    assert {types["self.model.embed_tokens.weight"], types["self.lm_head.weight"]} == {outer}


@pytest.mark.parametrize("format_id", FORMATS)
def test_no_two_weights_share_content(format_id: str) -> None:
    weight_format, group_size, sym = FORMATS[format_id]
    model = build_model(TINY_SHAPES["qwen3_moe"], weight_format, group_size, sym=sym)
    large = [node.data for node in _weight_constants(model) if node.get_byte_size() > 4096]
    addresses = {array.__array_interface__["data"][0] for array in large}
    pieces = {array.tobytes()[start : start + 64] for array in large for start in (0, 1024, 4032)}
    assert len(addresses) == len(large)
    assert len(pieces) == 3 * len(large)


@pytest.mark.parametrize("family", TINY_SHAPES)
@pytest.mark.parametrize("format_id", FORMATS)
def test_weights_keep_the_variance_of_a_state(family: str, format_id: str) -> None:
    shape = TINY_SHAPES[family]
    weight_format, group_size, sym = FORMATS[format_id]
    arrays = weight_arrays(build_model(shape, weight_format, group_size, sym=sym), shape)
    peaked = ("q_norm.weight", "k_norm.weight") if shape.qk_norm else ("q_proj.weight", "k_proj.weight")
    for name, array in arrays.items():
        gain = 3.0 if name == "model.norm.weight" else 2.0 if name.endswith(peaked) else 1.0
        if array.ndim == 1:
            assert array.mean() == pytest.approx(gain, rel=0.05), name
        elif array.size > 10_000:
            assert array.std() * array.shape[-1] ** 0.5 == pytest.approx(gain, rel=0.05), name


def test_same_seed_same_weights_and_shallow_model_is_a_prefix() -> None:
    shape = TINY_SHAPES["qwen3"]
    shallow = replace(shape, num_hidden_layers=1)
    first, again = (weight_arrays(build_model(shape, seed=11), shape) for _ in range(2))
    other = weight_arrays(build_model(shape, seed=12), shape)
    prefix = weight_arrays(build_model(shallow, seed=11), shallow)
    for name, array in first.items():
        np.testing.assert_array_equal(again[name], array)
        assert not np.array_equal(other[name], array)
    for name, array in prefix.items():
        np.testing.assert_array_equal(first[name], array)


@pytest.mark.parametrize("family", TINY_SHAPES)
def test_deep_model_stays_finite_and_its_logits_differ(family: str) -> None:
    shape = replace(TINY_SHAPES[family], num_hidden_layers=16, vocab_size=4001)
    request = ov.Core().compile_model(build_model(shape), "CPU").create_infer_request()
    rows = 48
    inputs = {
        "input_ids": np.random.default_rng(0).integers(0, shape.vocab_size, (1, rows)),
        "attention_mask": np.ones((1, rows), np.int64),
        "position_ids": np.arange(rows)[None],
        "beam_idx": np.zeros(1, np.int32),
    }
    logits = np.array(request.infer(inputs)["logits"])[0].astype(np.float64)
    assert np.isfinite(logits).all()
    assert logits.std() == pytest.approx(3.0, rel=0.15)
    probability = np.exp(logits - logits.max(-1, keepdims=True))
    probability /= probability.sum(-1, keepdims=True)
    assert 0.05 < np.median(probability.max(-1)) < 0.9
    # Rows differ: no collapse onto one answer, which would also route all rows to the same experts.
    assert len(set(logits.argmax(-1))) > rows // 2
    direction = logits / np.linalg.norm(logits, axis=-1, keepdims=True)
    assert (direction @ direction.T)[np.triu_indices(rows, 1)].mean() < 0.6


@pytest.mark.parametrize("format_id", FORMATS)
def test_saved_model_is_the_same_model(format_id: str, tmp_path: Path) -> None:
    shape = TINY_SHAPES["qwen3"]
    weight_format, group_size, sym = FORMATS[format_id]
    model = build_model(shape, weight_format, group_size, sym=sym)
    path = tmp_path / "openvino_model.xml"
    ov.save_model(model, path, compress_to_fp16=False)
    read = ov.Core().read_model(path)
    for name, array in weight_arrays(read, shape).items():
        np.testing.assert_array_equal(array, weight_arrays(model, shape)[name])
    marked = path.read_text().count('name="decompression"')
    matrices = sum(len(dims) > 1 for dims in shape.weight_shapes().values())
    assert marked == (matrices if weight_format == "fp16" else 0)


def test_memory_stays_near_the_compressed_size() -> None:
    """Peak memory of building a 226 MB model, in a process of its own."""
    code = (
        "import re\n"
        "from pathlib import Path\n"
        "from ovspec_models.shapes import get_shape\n"
        "from ovspec_models.synthetic import build_model\n"
        "peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+) kB', Path('/proc/self/status').read_text())[1])\n"
        "before = peak()\n"
        "model = build_model(get_shape('llama-3.1-8b', layers=1, vocab_size=1000))\n"
        "print(1024 * (peak() - before))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    promised = weight_bytes(get_shape("llama-3.1-8b", layers=1, vocab_size=1000))
    assert promised > 226e6
    assert 0.9 * promised < int(run.stdout) < promised + 40e6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weight_format": "int3"}, "weight_format is 'int3', expected one of int8, int4, fp16, fp32"),
        (
            {"weight_format": "int4", "group_size": 96},
            "group_size is 96, expected a divisor of the 256 input",
        ),
        ({"weight_format": "int4", "group_size": 1}, "group_size is 1, expected an even number"),
        ({"seed": -1}, "seed is -1, expected an integer >= 0"),
        ({"weight_format": "int8", "sym": True}, "sym is True with weight_format 'int8', expected int4"),
    ],
    ids=["format", "group-size", "group-of-one", "seed", "sym"],
)
def test_bad_arguments_raise_one_line(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        build_model(TINY_SHAPES["qwen3"], **arguments)  # type: ignore[arg-type]
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
