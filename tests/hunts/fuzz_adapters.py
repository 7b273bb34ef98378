"""Valid files of LoRA adapters, and a model with one layer that takes them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors import serialize
from safetensors.numpy import save

import ovspec
from ovspec.adapters.adapter_config import AdapterBlend
from ovspec.adapters.model_adapters import ModelAdapters
from ovspec_transforms import AdaptedLayer

_ADAPTED = "model.layers.0.self_attn.q_proj"
_LORA = {
    "peft_type": "LORA", "r": 2, "lora_alpha": 4, "use_rslora": False, "use_dora": False, "bias": "none",
    "alpha_pattern": {"q_proj": 8}, "rank_pattern": {}, "init_lora_weights": True, "modules_to_save": None,
    "target_modules": ["q_proj"], "base_model_name_or_path": "x", "task_type": "CAUSAL_LM",
    "lora_bias": False, "trainable_token_indices": None, "layer_replication": None,
}  # fmt: skip


def peft_files() -> dict[str, bytes]:
    """What PEFT's save_pretrained writes."""
    name = f"base_model.model.{_ADAPTED}"
    arrays = {
        f"{name}.lora_A.weight": np.ones((2, 8), np.float32),
        f"{name}.lora_B.weight": np.ones((40, 2), np.float16),
    }
    return {"adapter_config.json": json.dumps(_LORA).encode(), "adapter_model.safetensors": save(arrays)}


def kohya_files() -> dict[str, bytes]:
    """What kohya's scripts write, in bf16."""
    name, bf16 = f"lora_te_{_ADAPTED.replace('.', '_')}", {"dtype": "bfloat16"}
    entries = {
        f"{name}.lora_down.weight": {**bf16, "shape": [2, 8], "data": b"\x80\x3f" * 16},
        f"{name}.lora_up.weight": {**bf16, "shape": [40, 2, 1, 1], "data": b"\x80\x3f" * 80},
        f"{name}.alpha": {**bf16, "shape": [], "data": b"\x80\x3f"},
    }
    return {"kohya.safetensors": serialize(entries)}


def read_adapter(folder: Path, file: str) -> object:
    """An adapter as a call of a model with one layer has it."""
    adapter = ovspec.Adapter(folder / file)
    blend = AdapterBlend.of(ovspec.AdapterConfig(adapter, 0.5))
    table = ModelAdapters([AdaptedLayer(f"__module.{_ADAPTED}/MatMul", 8, 40)]).load(blend)
    assert adapter.digest and table is not None
    return table.identity, adapter.nbytes
