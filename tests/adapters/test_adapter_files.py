"""Files of adapters: PEFT's and kohya's names, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from adapter_files import PREFIX, random_matrices, write_adapter
from numpy.typing import NDArray
from safetensors import serialize_file
from safetensors.numpy import save_file

import ovspec
from ovspec.adapters.adapter_file import AdapterLayer
from ovspec_ops.linear.adapters import LowRank

SIZES = {"model.layers.0.self_attn.q_proj": (24, 40), "model.layers.1.mlp.down_proj": (56, 24)}
NAME = f"{PREFIX}model.layers.0.self_attn.q_proj"


def tensors(rank: int = 4) -> dict[str, NDArray[Any]]:
    a, b = random_matrices({NAME: (24, 40)}, rank)[NAME]
    return {f"{NAME}.lora_A.weight": a, f"{NAME}.lora_B.weight": b}


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        (None, 1.0),
        ({}, 1.0),
        ({"peft_type": "LORA", "r": 4, "lora_alpha": 16}, 4.0),
        ({"lora_alpha": 16, "use_rslora": True}, 8.0),
        ({"lora_alpha": 16, "alpha_pattern": {"q_proj": 2, "layers.1.mlp.down_proj": 3}}, 0.5),
        # The first of PEFT's patterns that fits.
        ({"lora_alpha": 16, "alpha_pattern": {"self_attn.q_proj": 2, "q_proj": 8}}, 0.5),
        ({"lora_alpha": 16, "init_lora_weights": "gaussian"}, 4.0),
    ],
)
def test_the_scale_is_that_of_the_configuration(
    tmp_path: Path, config: dict[str, Any] | None, scale: float
) -> None:
    matrices = random_matrices(SIZES, rank=4)
    adapter = ovspec.Adapter(write_adapter(tmp_path / "one.safetensors", matrices, config))
    assert adapter and [layer.name for layer in adapter.layers] == [f"{PREFIX}{name}" for name in SIZES]
    assert adapter.layers[0].scale == scale
    for layer, (a, b) in zip(adapter.layers, matrices.values(), strict=True):
        same_product(layer, a, b)


def same_product(layer: AdapterLayer, a: NDArray[np.float32], b: NDArray[np.float32]) -> None:
    want = LowRank.pack(a, b)
    np.testing.assert_array_equal(layer.product.a, want.a)
    np.testing.assert_array_equal(layer.product.b, want.b)
    assert (layer.inputs, layer.outputs) == (a.shape[1], len(b))


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_kohya_names_and_types(tmp_path: Path, kind: str) -> None:
    """A tensor with the file's content is the same adapter."""
    name = "lora_te_model_layers_0_self_attn_q_proj"
    rng = np.random.default_rng(0)
    # Numbers that have no more than the 8 bits of bf16.
    a, b = (rng.integers(-64, 64, shape).astype(np.float32) for shape in ((2, 24), (40, 2)))
    entries = {}
    for key, array in {
        "lora_down.weight": a,
        "lora_up.weight": b,
        "alpha": np.array(6.0, np.float32),
    }.items():
        bf16 = (array.view(np.uint32) >> 16).astype(np.uint16)
        data = bf16 if kind == "bfloat16" else array.astype(kind)
        entries[f"{name}.{key}"] = {"dtype": kind, "shape": array.shape, "data": data.tobytes()}
    path = tmp_path / "kohya.safetensors"
    serialize_file(entries, path)
    read = ovspec.Adapter(path)
    given = ovspec.Adapter(ov.Tensor(np.frombuffer(path.read_bytes(), np.uint8)))
    assert read.digest == given.digest != b""
    (layer,) = read.layers
    assert (layer.name, layer.scale) == (name, 3.0)
    same_product(layer, a, b)


def test_the_digest_names_what_is_computed(tmp_path: Path) -> None:
    matrices = random_matrices(SIZES, rank=4)
    others = [
        (matrices, None),
        (matrices, {"lora_alpha": 8}),
        (random_matrices(SIZES, rank=4, seed=1), None),
    ]
    adapters = [
        ovspec.Adapter(write_adapter(tmp_path / str(n) / "a.safetensors", *of)) for n, of in enumerate(others)
    ]
    assert len({adapter.digest for adapter in adapters}) == 3
    again = ovspec.Adapter(write_adapter(tmp_path / "again" / "b.safetensors", matrices))
    assert again.digest == adapters[0].digest and again is not adapters[0]
    assert not ovspec.Adapter() and bool(again)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({f"{NAME}.lora_magnitude_vector": np.ones(4, np.float32)}, "lora_magnitude_vector is no lora_A or"),
        ({"base_model.model.lm_head.weight": np.ones((4, 4), np.float32)}, "lm_head.weight is no lora_A or"),
        ({f"{NAME}.lora_A.weight": np.ones((5, 24), np.float32)}, "A of rank 5 and B of rank 4"),
        ({f"{NAME}.lora_A.weight": np.ones(24, np.float32)}, r"has the shape \(24,\), expected a matrix"),
        ({f"{NAME}.lora_A.weight": np.ones((4, 24), np.int8)}, "is I8, expected F32, F16 or BF16"),
        ({f"{NAME}.lora_A.weight": np.full((4, 24), np.nan, np.float32)}, "values that are not finite"),
        ({"other.alpha": np.ones(1, np.float32)}, "other has an alpha and no matrices"),
        ({"other.lora_A.weight": np.ones((4, 24), np.float32)}, r"other has no lora_B \(lora_up\)"),
    ],
)
def test_tensors_that_are_not_taken_are_named(
    tmp_path: Path, change: dict[str, NDArray[Any]], message: str
) -> None:
    path = tmp_path / "adapter.safetensors"
    save_file({**tensors(), **change}, path)
    refused(path, message)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type='IA3' in adapter_config.json, expected 'LORA'"),
        ({"use_dora": True}, "use_dora=True in adapter_config.json is not taken"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save=\['lm_head'\] in adapter_config.json is not"),
        ({"alora_invocation_tokens": [5, 6]}, r"alora_invocation_tokens=\[5, 6\] in adapter_config.json"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa' in adapter_config.json: the adapter is"),
        ({"lora_alpha": "16"}, "lora_alpha='16' in adapter_config.json, expected a number"),
        ({"lora_alpha": 10**400}, r"lora_alpha=1\d+\.\.\.\d+ in adapter_config.json, expected a number"),
        ({"lora_alpha": True}, "lora_alpha=True in adapter_config.json, expected a number"),
        ({"alpha_pattern": {"nothing": 2}}, "names nothing, which ends no name of a layer"),
        ([], "is no object; save it again"),
        (None, "can't be read"),
    ],
)
def test_configurations_that_are_not_taken_are_named(tmp_path: Path, config: Any, message: str) -> None:
    path = tmp_path / "adapter.safetensors"
    save_file(tensors(), path)
    text = "{" if config is None else json.dumps(config)
    (tmp_path / "adapter_config.json").write_text(text, encoding="utf-8")
    refused(path, message)


def test_what_is_no_file_of_an_adapter(tmp_path: Path) -> None:
    refused(tmp_path, "is a folder: give the file in it, such as .*adapter_model.safetensors")
    refused(tmp_path / "none", "No such file or directory; give the file of a LoRA adapter")
    path = tmp_path / "adapter.safetensors"
    save_file(tensors(), path)
    whole = path.read_bytes()
    for content in (b"", whole[:20], whole[:-1], b"PK" + whole):
        path.write_bytes(content)
        refused(path, "is no safetensors file or is damaged")
    save_file({}, path)
    refused(path, "holds no LoRA adapter")
    with pytest.raises(TypeError, match=r"expected the name of a file or an openvino\.Tensor, got int"):
        ovspec.Adapter(3)  # type: ignore[arg-type]


def refused(path: Path, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        ovspec.Adapter(path)
    assert str(path) in str(caught.value) or str(path.parent) in str(caught.value)
    assert "\n" not in str(caught.value)
