"""Hydra heads (arXiv 2402.05109) as a graph in parts: head i reads a state and the tokens before its own.

The first layer of every head is linear in the state and in the embeddings beside it, so it is cut there. One
part makes of a state what it gives to each head; with ``prefix-mlp`` (Hydra++) one decoder layer over the
states of the whole text comes before. The other parts are the heads, run one after the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops

from ovspec_models.folder.head_info import OWN_EMBEDDING, TARGET_SIZE
from ovspec_models.folder.layer_windows import MOST_LAYERS
from ovspec_models.folder.shown import shown
from ovspec_models.heads.checkpoint import (
    CheckpointWeights,
    HeadCheckpoint,
    head_model,
    take_part,
)
from ovspec_models.heads.settings import AS_COMPUTED, OF_LAYERS, HeadSettings
from ovspec_models.shapes import ModelShape
from ovspec_models.synthetic.decoder import decoder_layer, kv_states, parameter, shared_inputs, text_inputs
from ovspec_models.synthetic.layers import i64, linear, rms_norm
from ovspec_models.synthetic.weights import Weights

#: What of the target's config.json the decoder layer is made by: a published head does not say it.
HYDRA_TAKES = (
    *("num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "rms_norm_eps"),
    *("max_position_embeddings", "rope_theta", "rope_scaling", "rope_parameters"),
)
_HEADS, _LAYERS, _FORM = "hydra_num_heads", "hydra_num_layers", "hydra_head_arch"
_FORMS = ("mlp", "prefix-mlp")
HYDRA_SETTINGS = HeadSettings(
    read=(_HEADS, _LAYERS, _FORM, "grounded_heads", "hidden_state_offset", *OF_LAYERS),
    values={**AS_COMPUTED, "num_hidden_layers": (1,)},
)
_PREFIX = "prefix_embeding_layer."  # as published
_PARTS = (
    *("input_layernorm", "post_attention_layernorm"),
    *(f"self_attn.{part}_proj" for part in "qkvo"),
    *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
)


@dataclass(frozen=True, slots=True)
class HydraParts:
    """The parts of a folder's graph.

    Attributes:
        states: input ``hidden_states``, f32 ``[rows, hidden size]`` or those of a stateful decoder; output
            ``logits`` f32 ``[..., heads * 2 * hidden size]``, what a state gives to the heads.
        heads: inputs f32 ``[rows, 2 * hidden size]`` of these, and ``[rows, (i + 1) * hidden size]``,
            embeddings of the last token of the text and of the i drafted behind it; output f32
            ``[rows, vocabulary]``.
        has_prefix: whether ``states`` is a decoder.
        size: hidden size.
    """

    states: ov.Model
    heads: tuple[ov.Model, ...]
    has_prefix: bool
    size: int


def hydra_model(checkpoint: HeadCheckpoint, weight_format: str | None = None) -> ov.Model:
    """The graph of all parts, which `open_hydra` takes apart.

    Raises:
        ValueError: as `hydra_arrays`, or a decoder layer of other sizes than the target's.
    """
    arrays, config = hydra_arrays(checkpoint), checkpoint.config
    weights = CheckpointWeights(arrays, weight_format == "fp32")
    heads, size = config[_HEADS], arrays["states.weight"].shape[1]
    if config[_FORM] == "mlp":
        states = parameter("hidden_states", ov.Type.f32, -1, size)
        inputs, stores = [states], list[ov.Node]()
    else:
        shape = replace(checkpoint, config={**checkpoint.config, **hydra_facts(checkpoint)}).shape(1)
        _check_layer(checkpoint, arrays, shape)
        states, inputs, stores = _prefix(shape, weights)
    outputs = {"logits": linear(states, weights, "states.weight")}
    for head in range(heads):
        ours = parameter(f"given.{head}", ov.Type.f32, -1, 2 * size)
        tokens = parameter(f"tokens.{head}", ov.Type.f32, -1, (head + 1) * size)
        inputs += [ours, tokens]
        first = ops.add(ours, _layer(tokens, *_weights(weights, f"{head}.tokens")))
        x = ops.add(_columns(first, 0, size), ops.swish(_columns(first, size, 2 * size)))
        for layer in range(1, config[_LAYERS]):
            if f"{head}.{layer}.weight" in arrays:  # else the block before is applied again
                block = _weights(weights, f"{head}.{layer}")
            x = ops.add(x, ops.swish(_layer(x, *block)))
        outputs[f"head.{head}"] = _layer(x, *_weights(weights, f"{head}.output"))
    return head_model("hydra", outputs, inputs, stores)


def open_hydra(model: ov.Model) -> HydraParts:
    """Take the graph of a folder apart, in place.

    Raises:
        ValueError: it is none that `hydra_model` has made.
    """
    inputs = {name: port for port in model.inputs for name in port.get_names()}
    results = {name for result in model.get_results() for name in result.input(0).get_tensor().names}
    heads = []
    for head in range(len(results) - 1):
        names = f"head.{head}", f"given.{head}", f"tokens.{head}"
        if names[0] not in results or not {*names[1:]} <= {*inputs}:
            raise ValueError(f"the model has no {names[0]}; export the heads again: `ovspec export --hydra`")
        heads.append(take_part(model, names[1:], names[:1]))
    if not heads or "hidden_states" not in inputs:
        raise ValueError("the model holds no Hydra heads; export them again: `ovspec export --hydra`")
    model.validate_nodes_and_infer_types()
    size = inputs["hidden_states"].get_partial_shape()[-1].get_length()
    return HydraParts(model, tuple(heads), "beam_idx" in inputs, size)


def hydra_reads(config: dict[str, Any]) -> Callable[[str], bool]:
    """Which weights are read: the embedding beside the heads is the target's."""
    return lambda name: not (name.startswith("input_embed_fn.") or name.endswith("embed_tokens.weight"))


def hydra_arrays(checkpoint: HeadCheckpoint) -> dict[str, NDArray[Any]]:
    """The weights by the names of the graph, from those in ``hydra_lm_head.pt``.

    Raises:
        ValueError: config.json names a form that is not known or no numbers of heads and layers, a weight is
            missing or has another shape.
    """
    _check_config(checkpoint)
    config, found = checkpoint.config, checkpoint.array
    heads, layers = config[_HEADS], config[_LAYERS]
    vocab_size, size = checkpoint.output_sizes(lambda head: _output_names(head, "weight"), _HEADS)
    arrays, of_state = dict[str, NDArray[Any]](), list[NDArray[Any]]()
    for head in range(heads):
        blocks = _blocks(checkpoint, head)
        read = (head + 2) * size
        first = [f"hydra_mlp.{head}.{blocks[0]}.{part}" for part in ("res_connection", "linear")]
        both = np.concatenate([found(f"{name}.weight", dims=(size, read)) for name in first])
        of_state.append(both[:, :size])
        arrays[f"{head}.tokens.weight"] = both[:, size:]
        arrays[f"{head}.tokens.bias"] = np.concatenate(
            [found(f"{name}.bias", dims=(size,)) for name in first]
        )
        before = dict[str, NDArray[Any]]()
        for layer in range(1, layers):
            name = f"hydra_mlp.{head}.{blocks[min(layer, len(blocks) - 1)]}.linear"
            block = {
                "weight": found(f"{name}.weight", dims=(size, size)),
                "bias": found(f"{name}.bias", dims=(size,)),
            }
            if not before or any(not np.array_equal(block[part], before[part]) for part in block):
                arrays |= {f"{head}.{layer}.{part}": array for part, array in block.items()}
            before = block
        for part, dims in (("weight", (vocab_size, size)), ("bias", (vocab_size,))):
            arrays[f"{head}.output.{part}"] = found(*_output_names(head, part), dims=dims)
    arrays["states.weight"] = np.concatenate(of_state)
    if config[_FORM] != "mlp":
        for part in _PARTS:
            arrays[f"layer.{part}.weight"] = checkpoint.array(f"{_PREFIX}layers.0.{part}.weight")
        arrays["norm.weight"] = found(f"{_PREFIX}norm.weight", dims=(size,))
    return arrays


def hydra_facts(checkpoint: HeadCheckpoint) -> dict[str, Any]:
    """What config.json of the exported folder says beside the published one."""
    vocab_size, size = hydra_arrays(checkpoint)["0.output.weight"].shape
    # Without the decoder layer there is no cache; the memory plan is given the smallest there is.
    smallest = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 1}
    return {
        "architectures": ["HydraModel"],
        "model_type": "llama",
        "hidden_size": size,
        TARGET_SIZE: size,
        "vocab_size": vocab_size,
        OWN_EMBEDDING: False,
        "num_hidden_layers": 1,
        **(smallest if checkpoint.config[_FORM] == "mlp" else {}),
    }


def _check_config(checkpoint: HeadCheckpoint) -> None:
    config, where = checkpoint.config, f"head '{checkpoint.folder}'"
    for key in (_HEADS, _LAYERS):
        checkpoint.count(key, most=MOST_LAYERS)
    if config.get(_FORM) not in _FORMS:
        raise ValueError(
            f"{where}: {_FORM} of config.json is {shown(config.get(_FORM))}, which is not known; known: "
            f"{', '.join(_FORMS)}; take another head"
        )
    for key, wanted in (("grounded_heads", True), ("hidden_state_offset", 0)):
        if config.get(key, 0) != wanted:
            raise ValueError(
                f"{where}: {key} of config.json is {shown(config.get(key))}, expected {wanted!r}: no other "
                "Hydra heads are published; take one of those"
            )


def _blocks(checkpoint: HeadCheckpoint, head: int) -> list[int]:
    """The numbers of a head's blocks, between which the published names count layers of dropout.

    Blocks behind the first are one and the same in published heads, and a file may hold it once.
    """
    form = re.compile(rf"hydra_mlp\.{head}\.(\d+)\.linear\.weight")
    numbers = sorted(int(match[1]) for name in checkpoint.arrays if (match := form.fullmatch(name)))
    layers = checkpoint.config[_LAYERS]
    if len(numbers) not in {layers, min(layers, 2)}:
        raise ValueError(
            f"head '{checkpoint.folder}': {_LAYERS} of config.json is {layers}, hydra_mlp.{head} has "
            f"{len(numbers)} blocks; get both from the same place"
        )
    return numbers


def _output_names(head: int, part: str) -> tuple[str, str]:
    """Names of an output layer, which may stand behind a layer of dropout."""
    return f"hydra_lm_head.{head}.{part}", f"hydra_lm_head.{head}.1.{part}"


def _check_layer(checkpoint: HeadCheckpoint, arrays: dict[str, NDArray[Any]], shape: ModelShape) -> None:
    for theirs, dims in shape.weight_shapes().items():
        name = theirs.replace("model.layers.0.", "layer.")
        if name in arrays and arrays[name].shape != dims:
            raise ValueError(
                f"head '{checkpoint.folder}' is made for another target: {name} of its decoder layer has the "
                f"shape {list(arrays[name].shape)}, by this target's config.json {list(dims)}"
            )


def _prefix(shape: ModelShape, weights: Weights) -> tuple[ov.Node, list[ov.Node], list[ov.Node]]:
    """States of the decoder layer, its inputs, and the Assigns of its cache."""
    inputs, given = text_inputs(), parameter("hidden_states", ov.Type.f32, -1, -1, shape.hidden_size)
    caches = kv_states(shape, inputs)
    shared = shared_inputs(shape, inputs, given, caches)
    hidden, stores = decoder_layer(given, shape, weights, "layer", shared, caches[0])
    states = rms_norm(hidden, weights, "norm.weight", shape.rms_norm_eps)
    return states, [inputs.ids, given, *inputs[1:]], stores


def _weights(weights: Weights, name: str) -> tuple[ov.Node, ov.Node]:
    return weights.matrix(f"{name}.weight"), weights.vector(f"{name}.bias", 2)


def _layer(x: ov.Node, weight: ov.Node, bias: ov.Node) -> ov.Node:
    return ops.add(ops.matmul(x, weight, False, True), bias)


def _columns(x: ov.Node, begin: int, end: int) -> ov.Node:
    return ops.slice(x, i64(begin), i64(end), i64(1), i64(1))
