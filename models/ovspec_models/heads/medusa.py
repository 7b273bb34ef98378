"""Medusa heads (arXiv 2401.10774) as a graph: head i drafts the token i + 1 places after the target's own."""

from __future__ import annotations

from typing import Any

import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops

from ovspec_models.head_info import TARGET_SIZE
from ovspec_models.heads.checkpoint import CheckpointWeights, HeadCheckpoint
from ovspec_models.synthetic.layers import i64_scalar, linear

_HEADS, _LAYERS = "medusa_num_heads", "medusa_num_layers"


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
    states = ops.parameter(ov.PartialShape([-1, hidden]), ov.Type.f32, name="hidden_states")
    states.output(0).set_names({"hidden_states"})
    drafted = []
    for head in range(heads):
        x = states
        for layer in range(layers):
            name = f"{head}.{layer}.linear"
            inner = ops.add(linear(x, weights, f"{name}.weight"), weights.vector(f"{name}.bias", 2))
            x = ops.add(x, ops.swish(inner))
        drafted.append(ops.unsqueeze(linear(x, weights, f"{head}.{layers}.weight"), i64_scalar(1)))
    logits = ops.concat(drafted, 1)
    logits.output(0).set_names({"logits"})
    model = ov.Model([ops.result(logits)], [states], "medusa")
    model.set_rt_info("True", ["medusa_mode"])
    return model


def medusa_arrays(checkpoint: HeadCheckpoint) -> dict[str, NDArray[Any]]:
    """The weights by their names in ``medusa_lm_head.pt``, e.g. ``0.1.linear.weight`` of head 0, layer 1.

    Raises:
        ValueError: config.json says no numbers of heads and layers, a weight is missing or has another shape.
    """
    config, where = checkpoint.config, f"head '{checkpoint.folder}'"
    for key in (_HEADS, _LAYERS):
        value = config.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{where}: {key} of config.json is {value!r}, expected a positive integer")
    arrays: dict[str, NDArray[Any]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    output = checkpoint.array(*_names(f"0.{config[_LAYERS]}.weight"))
    if output.ndim != 2:
        raise ValueError(
            f"{where}: 0.{config[_LAYERS]}.weight has the shape {list(output.shape)}, expected [vocabulary, "
            "hidden size]; get the checkpoint again"
        )
    if set(_names(f"{config[_HEADS]}.{config[_LAYERS]}.weight")) & set(checkpoint.arrays):
        raise ValueError(
            f"{where}: {_HEADS} of config.json is {config[_HEADS]}, the checkpoint has more; set it to their "
            "number"
        )
    vocab_size, hidden = output.shape
    for head in range(config[_HEADS]):
        for layer in range(config[_LAYERS]):
            shapes |= {
                f"{head}.{layer}.linear.weight": (hidden, hidden),
                f"{head}.{layer}.linear.bias": (hidden,),
            }
        shapes[f"{head}.{config[_LAYERS]}.weight"] = (vocab_size, hidden)
    for name, shape in shapes.items():
        arrays[name] = checkpoint.array(*_names(name))
        if arrays[name].shape != shape:
            raise ValueError(
                f"{where}: {name} has the shape {list(arrays[name].shape)}, the other heads' {list(shape)}; "
                "get the checkpoint again"
            )
    return arrays


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
