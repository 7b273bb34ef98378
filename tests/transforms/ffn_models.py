"""Tiny dense models: random checkpoints exported by optimum-intel, and synthetic ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import openvino as ov
from transforms.moe_models import export_checkpoint

from ovspec_models.shapes import get_shape
from ovspec_models.synthetic import build_model

FAMILIES = ("qwen3", "gelu", "phi3")
LAYERS, HIDDEN, CHANNELS = 2, 64, 96
_SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": HIDDEN,
    "intermediate_size": CHANNELS,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
}


def export_dense(family: str, folder: Path) -> Path:
    """Random f32 checkpoint of a family, exported; returns the IR's path."""
    if family == "gelu":  # as Gemma's, whose own export needs an older transformers
        return export_checkpoint("llama", {**_SIZES, "hidden_act": "gelu_pytorch_tanh"}, folder)
    if family == "phi3":  # gate and up in one
        sizes = {name: size for name, size in _SIZES.items() if name != "head_dim"} | {"pad_token_id": 0}
        return export_checkpoint(family, sizes, folder)
    return export_checkpoint(family, _SIZES, folder)


def tiny_dense(weight_format: str = "int8", vocab_size: int = 96) -> ov.Model:
    """A synthetic model of the exported ones' sizes, without an export."""
    sizes = {**_SIZES, "vocab_size": vocab_size, "head_dim": 32}
    shape = replace(get_shape("qwen3-0.6b"), **sizes)
    return build_model(shape, weight_format, group_size=32)
