"""An EAGLE-3 head (arXiv 2503.01840) as a stateful graph, as optimum-intel would export it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops

from ovspec_models.folder.head_info import (
    BOUNDARIES,
    FORMAT,
    MASK_TOKENS,
    NORMS,
    OWN_EMBEDDING,
    OWN_OUTPUT,
    boundaries_of,
    form_of,
    has_own_tokens,
    masks_of,
    norms_of,
)
from ovspec_models.folder.layer_windows import MOST_LAYERS
from ovspec_models.heads.checkpoint import (
    CheckpointWeights,
    HeadCheckpoint,
    head_model,
    is_buffer,
)
from ovspec_models.heads.draft_vocabulary import check_tables
from ovspec_models.heads.settings import AS_COMPUTED, OF_LAYERS, HeadSettings
from ovspec_models.shapes import ModelShape
from ovspec_models.synthetic.attention import attention
from ovspec_models.synthetic.decoder import (
    add_ffn,
    decoder_layer,
    embed,
    kv_states,
    parameter,
    shared_inputs,
    text_inputs,
)
from ovspec_models.synthetic.layers import i64, linear, rms_norm

# The first layer's attention reads the token's embedding too.
_READ_BOTH = tuple(f"layers.0.self_attn.{part}_proj.weight" for part in "qkv")
_QK_NORMS = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")
_EMBEDDING, _OUTPUT = "embed_tokens.weight", "lm_head.weight"
_OF_TARGET = ("verifier_norm.weight", "verifier_lm_head.weight")
_USUAL_BOUNDARIES = 3
_FLAG = (False, True)
_MASK = "mask_hidden"
_SETTINGS = HeadSettings(
    read=(*OF_LAYERS, "draft_vocab_size", "num_hidden_layers"),
    values={
        **AS_COMPUTED,
        **dict.fromkeys((*NORMS, "attention_bias", "mlp_bias", "qkv_bias"), _FLAG),
        "eagle_config.use_aux_hidden_state": (True,),
        "eagle_config.use_input_layernorm_in_first_layer": (True,),
        "eagle_config.use_last_layernorm": (True,),
        "eagle_config.use_mtp_layernorm": (False,),
        **{f"eagle_config.{name}": _FLAG for name in NORMS},
    },
    inside={"eagle_config": (BOUNDARIES,)},
)


def eagle3_settings(config: dict[str, Any]) -> HeadSettings:
    """What of config.json a head follows."""
    if form_of(config) != "peagle":
        return _SETTINGS
    return _SETTINGS.and_those(HeadSettings(read=("mask_token_id", *MASK_TOKENS), values={}))


def eagle3_model(checkpoint: HeadCheckpoint, weight_format: str | None = None) -> ov.Model:
    """The graph of a head.

    Inputs ``input_ids``, ``hidden_states`` f32 ``[batch, rows, states]``, ``attention_mask``,
    ``position_ids``, ``beam_idx``; outputs ``logits`` over the draft's vocabulary, ``d2t``, and
    of P-EAGLE ``mask_hidden`` f32 ``[states]``, which stands for states that are not known yet. A head
    without an embedding or output layer of its own gets one of a single row; the target's replaces it when it
    is loaded.

    Raises:
        ValueError: as `eagle3_arrays`.
    """
    arrays = eagle3_arrays(checkpoint)
    norms = norms_of(checkpoint.config)
    shape = _shape(checkpoint)
    weights = CheckpointWeights(arrays, weight_format == "fp32")
    inputs, eps = text_inputs(), shape.rms_norm_eps
    states = parameter("hidden_states", ov.Type.f32, -1, -1, arrays["fc.weight"].shape[1])
    embedded = embed(weights.matrix(_EMBEDDING), inputs.ids)
    features = linear(_normed_states(states, weights, arrays, eps), weights, "fc.weight")
    normed = rms_norm(features, weights, "layers.0.hidden_norm.weight", eps)
    both = ops.concat([rms_norm(embedded, weights, "layers.0.input_layernorm.weight", eps), normed], -1)
    caches = kv_states(shape, inputs)
    shared = shared_inputs(shape, inputs, features, caches)
    mixed, stores = attention(both, shape, weights, "layers.0.self_attn", shared, caches[0])
    hidden = ops.add(normed if "norm_before_residual" in norms else features, mixed)
    hidden = add_ffn(hidden, shape, weights, "layers.0")
    for layer in range(1, shape.num_hidden_layers):
        hidden, assigns = decoder_layer(hidden, shape, weights, f"layers.{layer}", shared, caches[layer])
        stores += assigns
    outputs = {"logits": linear(rms_norm(hidden, weights, "norm.weight", eps), weights, _OUTPUT)}
    if "d2t" in arrays:
        outputs["d2t"] = ops.constant(arrays["d2t"].astype(np.int64))
    if _MASK in arrays:
        outputs[_MASK] = ops.constant(arrays[_MASK].astype(np.float32))
    return head_model("eagle3", outputs, [inputs.ids, states, *inputs[1:]], stores)


def _normed_states(
    states: ov.Node, weights: CheckpointWeights, arrays: Mapping[str, NDArray[Any]], eps: float
) -> ov.Node:
    """What `fc` reads: the joined states, those behind a norm of all, or of every boundary behind its own."""
    if "input_norm.weight" in arrays:
        return rms_norm(states, weights, "input_norm.weight", eps)
    names = [name for name in arrays if name.startswith("fc_norm.")]
    if not names:
        return states
    size = len(arrays[names[0]])
    parts = [
        ops.slice(states, i64(place * size), i64((place + 1) * size), i64(1), i64(-1))
        for place in range(len(names))
    ]
    return ops.concat(
        [rms_norm(part, weights, name, eps) for part, name in zip(parts, names, strict=True)], -1
    )


def eagle3_arrays(checkpoint: HeadCheckpoint) -> dict[str, NDArray[Any]]:
    """The weights by the names of the graph.

    Raises:
        ValueError: a weight is missing or has a wrong shape, `d2t` is missing where the head has a vocabulary
            of its own; or config.json asks for two forms of a norm, or leaves out one that its readers take
            differently.
    """
    _check_norms(checkpoint)
    shape = _shape(checkpoint)
    weights = _weights(checkpoint, shape)
    arrays = {name: checkpoint.array(*_places(name), dims=dims) for name, dims in weights.items()}
    if held := checkpoint.held(*_places("d2t")):
        arrays["d2t"] = checkpoint.arrays[held]
    if held := checkpoint.held(*_places(_EMBEDDING)):
        arrays[_EMBEDDING] = checkpoint.array(held, dims=(checkpoint.count("vocab_size"), shape.hidden_size))
    if form_of(checkpoint.config) == "peagle":
        masks_of(checkpoint.folder, checkpoint.config)
        states = arrays["fc.weight"].shape[1]
        found = checkpoint.array(_MASK)
        checkpoint.check_shape(_MASK, found, (1, 1, states), (1, states), (states,))
        arrays[_MASK] = found.reshape(-1)
    if checkpoint.config.get("tie_word_embeddings") is True and _EMBEDDING in arrays:
        arrays.setdefault(_OUTPUT, arrays[_EMBEDDING])
    _check_vocabulary(checkpoint, arrays)
    for name in (_EMBEDDING, _OUTPUT):
        arrays.setdefault(name, np.zeros((1, shape.hidden_size), np.float32))
    return arrays


def _shape(checkpoint: HeadCheckpoint) -> ModelShape:
    drafted = len(checkpoint.matrix(*_places(_OUTPUT))) if _has_output(checkpoint) else 1
    qk_norm = any(name.endswith(_QK_NORMS) for name in checkpoint.arrays)
    return checkpoint.shape(drafted, _layers(checkpoint), qk_norm=qk_norm)


def _layers(checkpoint: HeadCheckpoint) -> int:
    return checkpoint.count("num_hidden_layers", 1, most=MOST_LAYERS)


def _weights(checkpoint: HeadCheckpoint, shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Every weight's name in the graph, and its shape; biases where the checkpoint has or needs them."""
    hidden, found = shape.hidden_size, dict[str, tuple[int, ...]]()
    for theirs, dims in shape.weight_shapes().items():
        name = theirs.removeprefix("model.")
        found[name] = (dims[0], 2 * hidden) if name in _READ_BOTH else dims
        bias = f"{name.removesuffix('.weight')}.bias"
        if name.endswith("_proj.weight") and _has_bias(checkpoint, bias):
            found[bias] = dims[:1]
    del found[_EMBEDDING]
    if not _has_output(checkpoint):
        del found[_OUTPUT]
    norms = _norms_of_states(checkpoint)
    states = checkpoint.matrix(*_places("fc.weight")).shape[1]
    found |= {name: (states // len(norms),) for name in norms}
    return {**found, "layers.0.hidden_norm.weight": (hidden,), "fc.weight": (hidden, states)}


def _has_bias(checkpoint: HeadCheckpoint, name: str) -> bool:
    config = checkpoint.config
    if ".mlp." in name:
        asked = config.get("mlp_bias")
    else:
        asked = config.get("attention_bias", config.get("qkv_bias"))
    # Some layers have biases of queries, keys and values alone.
    needed = asked and not name.endswith("o_proj.bias")
    return asked is not False and bool(needed or checkpoint.held(*_places(name)))


def _places(name: str) -> tuple[str, ...]:
    """Names that a weight of the graph may have in checkpoints: those of the paper's authors, and others'."""
    first = name.replace("layers.0.", "midlayer.")
    names = (first, name) if first != name else (name,)
    return (*names, *(f"model.{one}" for one in names))


def _norms_of_states(checkpoint: HeadCheckpoint) -> list[str]:
    """Weights of the norms before `fc`."""
    norms = norms_of(checkpoint.config)
    if "norm_before_fc" in norms:
        return ["input_norm.weight"]
    count = len(boundaries_of(checkpoint.folder, checkpoint.config) or ()) or _USUAL_BOUNDARIES
    return [f"fc_norm.{place}.weight" for place in range(count)] if "fc_norm" in norms else []


def _check_norms(checkpoint: HeadCheckpoint) -> None:
    config, where = checkpoint.config, f"head '{checkpoint.folder}'"
    if FORMAT in config and "norm_before_residual" not in config:
        raise ValueError(
            f"{where}: config.json does not say norm_before_residual, which vLLM takes for true and "
            "speculators for false; write the one that the head was trained with"
        )
    if {"norm_before_fc", "fc_norm"} <= norms_of(config):
        raise ValueError(f"{where}: config.json asks for norm_before_fc and fc_norm; a head has one of them")


def _has_output(checkpoint: HeadCheckpoint) -> bool:
    """Whether it must have an output layer: one for all of the target's tokens may be the target's."""
    return bool(
        checkpoint.held(*_places(_OUTPUT))
        or checkpoint.held(*_places("d2t"))
        or has_own_tokens(checkpoint.config)
    )


def _check_vocabulary(checkpoint: HeadCheckpoint, arrays: Mapping[str, NDArray[Any]]) -> None:
    if _OUTPUT not in arrays:
        return
    drafted, vocab_size = len(arrays[_OUTPUT]), checkpoint.config.get("vocab_size")
    if "d2t" not in arrays and drafted != vocab_size:
        raise ValueError(
            f"head '{checkpoint.folder}' drafts {drafted} of {vocab_size} tokens and has no d2t, which says "
            "of which; get the whole checkpoint"
        )
    if "d2t" in arrays:
        known = checkpoint.arrays.get(checkpoint.held(*_places("t2d")) or "")
        check_tables(checkpoint.folder, drafted, arrays["d2t"], known)


def eagle3_ignores(name: str) -> bool:
    """Whether a weight changes nothing: which tokens it can draft, d2t says too; parts of its target."""
    return name.removeprefix("model.") in ("t2d", *_OF_TARGET) or is_buffer(name)


def eagle3_facts(checkpoint: HeadCheckpoint) -> dict[str, Any]:
    """What config.json of the exported folder says beside the published one."""
    own = checkpoint.held(*_places(_EMBEDDING)) is not None
    tied = own and checkpoint.config.get("tie_word_embeddings") is True
    return {
        OWN_EMBEDDING: own,
        OWN_OUTPUT: tied or _has_output(checkpoint),
        "num_hidden_layers": _layers(checkpoint),
    }
