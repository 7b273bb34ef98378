"""Tiny mixtures of experts: random checkpoints exported by optimum-intel, and how to run them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec_models.shapes import get_shape
from ovspec_models.synthetic import build_model

FAMILIES = ("qwen3_moe", "mixtral", "qwen2_moe", "gpt_oss")
LAYERS, EXPERTS, TOP_K = 2, 8, 3

# Weights alone are compressed: stock would round activations to 8 bits in its dense layers, and a row then
# differs by more than the experts do.
EXACT: dict[str, Any] = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
}
_SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "num_experts_per_tok": TOP_K,
}
_EXPERTS: dict[str, Any] = {"num_experts": EXPERTS, "moe_intermediate_size": 32}


def export_checkpoint(family: str, sizes: dict[str, Any], folder: Path) -> Path:
    """Random f32 checkpoint of a model type, exported; returns the IR's path."""
    import torch
    from optimum.intel import OVModelForCausalLM
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes))
    for name, weight in model.named_parameters():
        if weight.dim() > 1:  # at their default of 0.02 all experts weigh the same, and add next to nothing
            torch.nn.init.normal_(weight, std=0.5 if ".gate.weight" in name else 0.15)
    model.float().save_pretrained(folder / "checkpoint")
    exported = OVModelForCausalLM.from_pretrained(
        folder / "checkpoint", export=True, compile=False, load_in_8bit=False
    )
    exported.save_pretrained(folder)
    return folder / "openvino_model.xml"


def export_family(family: str, folder: Path) -> Path:
    """Random f32 checkpoint of a family with experts, exported; returns the IR's path."""
    extra = {
        "qwen3_moe": {**_EXPERTS, "head_dim": 16, "norm_topk_prob": True},
        "mixtral": {"num_local_experts": EXPERTS},
        "gpt_oss": {"num_local_experts": EXPERTS, "head_dim": 16},
        "qwen2_moe": {**_EXPERTS, "shared_expert_intermediate_size": 64},
    }[family]
    return export_checkpoint(family, {**_SIZES, **extra}, folder)


def tiny_moe(weight_format: str = "int8", vocab_size: int = 96) -> ov.Model:
    """A synthetic model of the exported ones' sizes, without an export."""
    shape = get_shape("qwen3-moe-64x8", layers=LAYERS, vocab_size=vocab_size)
    sizes = {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "num_experts": EXPERTS,
        "num_experts_per_tok": TOP_K,
        "moe_intermediate_size": 32,
    }
    return build_model(replace(shape, **sizes), weight_format, group_size=32)


def moe_folder(folder: Path, demo_ir: Path, weight_format: str = "int4") -> Path:
    """A folder with the synthetic model and the demo's tokenizer, for whole pipelines."""
    folder.mkdir()
    for file in demo_ir.glob("*"):
        if file.is_file() and not file.name.startswith("openvino_model"):
            shutil.copy(file, folder)
    (folder / "ovspec_config.json").unlink()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {"num_hidden_layers": LAYERS, "hidden_size": 64, "head_dim": 32, "model_type": "qwen3_moe"}
    config.pop("layer_types")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    model = tiny_moe(weight_format, config["vocab_size"])
    ov.save_model(model, folder / "openvino_model.xml", compress_to_fp16=False)
    return folder


def compress(model: ov.Model, weight_format: str) -> ov.Model:
    """The model with its weights as NNCF writes them; "f32" as it is."""
    import nncf

    modes = {
        "int8": (nncf.CompressWeightsMode.INT8_ASYM, {}),
        "int8_sym": (nncf.CompressWeightsMode.INT8_SYM, {}),
        "int4": (nncf.CompressWeightsMode.INT4_ASYM, {"group_size": 32, "all_layers": True}),
        "int4_sym": (nncf.CompressWeightsMode.INT4_SYM, {"group_size": -1, "all_layers": True}),
    }
    if weight_format == "f32":
        return model
    mode, options = modes[weight_format]
    return nncf.compress_weights(model, mode=mode, **options)


def logits(model: ov.Model, rows: int = 9, **inputs: NDArray[Any]) -> tuple[NDArray[np.float32], list[int]]:
    """Logits of a stateful model for a fixed prompt, and `experts_read`, empty where there is none."""
    compiled = ov.Core().compile_model(model, "CPU", EXACT)
    prompt = {
        "input_ids": np.random.default_rng(0).integers(0, 96, (1, rows)),
        "attention_mask": np.ones((1, rows), np.int64),
        "position_ids": np.arange(rows)[None],
        "beam_idx": np.zeros(1, np.int32),
        **inputs,
    }
    names = {name for port in compiled.inputs for name in port.get_names()}
    request = compiled.create_infer_request()
    request.infer({name: value for name, value in prompt.items() if name in names})
    read = [port for port in compiled.outputs if "experts_read" in port.get_names()]
    return (
        request.get_tensor("logits").data.copy(),
        request.get_tensor(read[0]).data.tolist() if read else [],
    )


def assert_same_logits(expected: np.ndarray, got: np.ndarray) -> None:
    """Two programs for one model: integer rows of 16 bits are the largest difference that is right."""
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= 2e-4 * np.abs(expected).max()
