"""LoRA adapters with random matrices, as PEFT writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

Matrices = tuple[NDArray[np.float32], NDArray[np.float32]]
PREFIX = "base_model.model."


def layer_sizes(folder: Path, names: tuple[str, ...] = ()) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of the linear layers of a Llama or Qwen3, only of these names if there are any."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    size = config.get("head_dim") or hidden // config["num_attention_heads"]
    query, key = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    sizes = {
        "self_attn.q_proj": (hidden, query),
        "self_attn.k_proj": (hidden, key),
        "self_attn.v_proj": (hidden, key),
        "self_attn.o_proj": (query, hidden),
        "mlp.gate_proj": (hidden, inner),
        "mlp.up_proj": (hidden, inner),
        "mlp.down_proj": (inner, hidden),
    }
    return {
        f"model.layers.{layer}.{name}": size
        for layer in range(config["num_hidden_layers"])
        for name, size in sizes.items()
        if not names or name in names
    }


def random_matrices(
    sizes: Mapping[str, tuple[int, int]], rank: int = 8, seed: int = 0, strength: float = 1.0
) -> dict[str, Matrices]:
    """A and B of each layer; of the strength 1 what they add is some tenth of a layer with usual weights."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, (inputs, outputs) in sizes.items():
        a = rng.standard_normal((rank, inputs)) * inputs**-0.5
        b = rng.standard_normal((outputs, rank)) * strength * 0.3 * rank**-0.5
        found[name] = a.astype(np.float32), b.astype(np.float32)
    return found


def write_adapter(
    path: Path, matrices: Mapping[str, Matrices], config: Mapping[str, Any] | None = None
) -> Path:
    """Write a file, and with a configuration `adapter_config.json` beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, (a, b) in matrices.items():
        tensors[f"{PREFIX}{name}.lora_A.weight"] = a
        tensors[f"{PREFIX}{name}.lora_B.weight"] = b
    save_file(tensors, path)
    if config is not None:
        (path.parent / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


def random_adapter(
    path: Path, folder: Path, rank: int = 8, seed: int = 0, strength: float = 1.0, *names: str
) -> Path:
    """Write an adapter for the model in a folder, which needs no configuration: its scale is 1."""
    return write_adapter(path, random_matrices(layer_sizes(folder, names), rank, seed, strength))
