"""Medusa heads (arXiv 2401.10774) as a graph: head i drafts the token i + 1 places after the target's own."""

from __future__ import annotations

from typing import Any

import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops

from ovspec_models.folder.head_info import TARGET_SIZE
from ovspec_models.heads.checkpoint import CheckpointWeights, HeadCheckpoint, head_model
from ovspec_models.heads.settings import AS_COMPUTED, OF_LAYERS, HeadSettings
from ovspec_models.synthetic.decoder import parameter
from ovspec_models.synthetic.layers import i64_scalar, linear

_HEADS, _LAYERS = "medusa_num_heads", "medusa_num_layers"
# The heads have no layers of a decoder: what config.json says of such is of the target.
MEDUSA_SETTINGS = HeadSettings(
    read=(_HEADS, _LAYERS, *OF_LAYERS, *AS_COMPUTED, "num_hidden_layers", "layer_types", "sliding_window"),
    values={},
)


def medusa_model(checkpoint: HeadCheckpoint, weight_format: str | None = None) -> ov.Model:
    """The graph of all heads.

    Input ``hidden_states`` f32 ``[rows, hidden size]``, what the target's output layer reads; output
    ``logits`` f32 ``[rows, heads, vocabulary]``.

    Raises:
        ValueError: as `medusa_arrays`.
    """
    arrays = medusa_arrays(checkpoint)
    heads, layers = checkpoint.config[_HEADS], checkpoint.config[_LAYERS]
    weights = CheckpointWeights(arrays, weight_format == "fp32")
    hidden = arrays["0.0.linear.bias"].shape[0]
    states = parameter("hidden_states", ov.Type.f32, -1, hidden)
    drafted = []
    for head in range(heads):
        x = states
        for layer in range(layers):
            name = f"{head}.{layer}.linear"
            inner = linear(x, weights, f"{name}.weight")
            x = ops.add(x, ops.swish(inner))
        drafted.append(ops.unsqueeze(linear(x, weights, f"{head}.{layers}.weight"), i64_scalar(1)))
    return head_model("medusa", {"logits": ops.concat(drafted, 1)}, [states])


def medusa_arrays(checkpoint: HeadCheckpoint) -> dict[str, NDArray[Any]]:
    """The weights by their names in ``medusa_lm_head.pt``, e.g. ``0.1.linear.weight`` of head 0, layer 1.

    Raises:
        ValueError: config.json says no numbers of heads and layers, a weight is missing or has another shape.
    """
    heads, layers = checkpoint.count(_HEADS), checkpoint.count(_LAYERS)
    vocab_size, hidden = checkpoint.output_sizes(lambda head: _names(f"{head}.{layers}.weight"), _HEADS)
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(heads):
        for layer in range(layers):
            shapes |= {
                f"{head}.{layer}.linear.weight": (hidden, hidden),
                f"{head}.{layer}.linear.bias": (hidden,),
            }
        shapes[f"{head}.{layers}.weight"] = (vocab_size, hidden)
    return {name: checkpoint.array(*_names(name), dims=shape) for name, shape in shapes.items()}


def medusa_facts(checkpoint: HeadCheckpoint) -> dict[str, Any]:
    """What config.json of the exported folder says beside the published one."""
    vocab_size, hidden = medusa_arrays(checkpoint)[f"0.{checkpoint.config[_LAYERS]}.weight"].shape
    # The heads have no attention and no cache; the memory plan is given the smallest there is.
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 1}
    return {
        "architectures": ["MedusaModel"],
        "hidden_size": hidden,
        TARGET_SIZE: hidden,
        "vocab_size": vocab_size,
        **sizes,
    }


def _names(name: str) -> tuple[str, str]:
    return name, f"medusa_head.{name}"
