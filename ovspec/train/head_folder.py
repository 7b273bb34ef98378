"""A trained head as a folder: its IR, and the checkpoint as heads are published."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from ovspec.train.eagle3_net import Eagle3Net
from ovspec_models import ModelInfo
from ovspec_models.folder.head_info import BOUNDARIES, TARGET_LAYERS, TARGET_SIZE
from ovspec_models.heads import export_head, open_head

#: The published form, in the folder of the IR.
CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """Sizes of a head that the user may choose; it reads the states of the target's `boundaries`."""

    draft_vocab_size: int
    intermediate_size: int
    boundaries: tuple[int, ...]


def head_config(target: ModelInfo, sizes: HeadSizes) -> dict[str, Any]:
    """The config.json of a head for a target, with the target's heads, positions and rotary base."""
    said = json.loads((target.folder / "config.json").read_text(encoding="utf-8"))
    nested = said.get("rope_parameters") or {}
    theta = said.get("rope_theta") or nested.get("rope_theta") or 1e4
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": target.hidden_size,
        "intermediate_size": sizes.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": target.num_attention_heads,
        "num_key_value_heads": target.num_key_value_heads,
        "head_dim": target.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": target.max_position_embeddings,
        "rms_norm_eps": 1e-6,
        "rope_theta": float(theta),
        "fc_norm": True,
        "tie_word_embeddings": False,
        "vocab_size": target.vocab_size,
        "draft_vocab_size": sizes.draft_vocab_size,
        TARGET_SIZE: target.hidden_size,
        TARGET_LAYERS: target.num_hidden_layers,
        BOUNDARIES: list(sizes.boundaries),
    }


def write_head(
    net: Eagle3Net,
    config: dict[str, Any],
    ids: NDArray[np.int64],
    target: ModelInfo,
    folder: Path,
    weight_format: str | None,
) -> None:
    """Write the checkpoint and the IR of a head for `target` into a folder.

    Args:
        config: its config.json.
        ids: i64 `[draft vocabulary]`, the target's ids.
        weight_format: of the IR, as `export_head`.
    """
    checkpoint = folder / CHECKPOINT
    checkpoint.mkdir(parents=True)
    arrays = {name: array.detach().cpu().contiguous() for name, array in net.state_dict().items()}
    offsets = torch.from_numpy(ids - np.arange(len(ids)))
    known = torch.zeros(target.vocab_size, dtype=torch.bool)
    known[torch.from_numpy(ids)] = True
    save_file({**arrays, "d2t": offsets, "t2d": known}, checkpoint / "model.safetensors")
    (checkpoint / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    export_head(open_head(checkpoint, "eagle3"), target, folder, weight_format)
