"""A stateful decoder with random weights, as optimum-intel would export a real one."""

from __future__ import annotations

from typing import Any, NamedTuple

import openvino as ov
from openvino import opset15 as ops

from ovspec_models.shapes import ModelShape
from ovspec_models.synthetic.attention import AttentionInputs, attention, causal_mask
from ovspec_models.synthetic.layers import (
    KVState,
    dense_ffn,
    i64,
    i64_scalar,
    linear,
    rms_norm,
    rope_tables,
    size_of,
)
from ovspec_models.synthetic.moe import moe_ffn
from ovspec_models.synthetic.weights import RandomWeights, Weights


def build_model(
    shape: ModelShape, weight_format: str = "int8", group_size: int = 128, seed: int = 0, sym: bool = False
) -> ov.Model:
    """Build a stateful decoder of the given shape with random weights.

    Inputs ``input_ids``, ``attention_mask``, ``position_ids`` i64 ``[batch, rows]`` (the mask
    ``[batch, past + rows]``) and ``beam_idx`` i32 ``[batch]``; output ``logits`` f32
    ``[batch, rows, vocab_size]``; two KV states per layer. The stock transform to paged attention and the CPU
    plugin's fusions treat it as they treat a real export. It carries optimum-intel's runtime options:
    ``fp16`` and ``fp32`` models have an f16 cache unless the compile properties say otherwise.

    Args:
        shape: sizes, e.g. ``get_shape("qwen3-0.6b")``.
        weight_format: ``int8`` (u8, one scale and zero point per output channel), ``int4`` (per group of
            input channels; embedding and LM head int8), ``fp16`` or ``fp32``.
        group_size: input channels per scale; read for ``int4`` only.
        seed: weights depend on it and on their name.
        sym: ``int4`` only: i4 without zero points in place of u4 with them.

    Weights are random in every bit, each in memory of its own: the model takes `weight_bytes`, and the
    first inference on a CPU about as much again. They are no language model's: measure time and bytes
    with them, not quality, acceptance or sparsity.

    Raises:
        ValueError: unknown `weight_format`, a `group_size` that does not divide the channels, a negative
            `seed`, or `sym` with another format than ``int4``.
    """
    if sym and weight_format != "int4":
        raise ValueError(f"sym is True with weight_format {weight_format!r}, expected int4; drop it")
    weights = RandomWeights(shape, weight_format, group_size, sym, seed)
    inputs = text_inputs()
    embedding = weights.matrix("model.embed_tokens.weight")
    hidden = embed(embedding, inputs.ids)
    states = kv_states(shape, inputs)
    shared = shared_inputs(shape, inputs, hidden, states)
    stores: list[ov.Node] = []
    for layer in range(shape.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        hidden, assigns = decoder_layer(hidden, shape, weights, prefix, shared, states[layer])
        stores += assigns
    hidden = rms_norm(hidden, weights, "model.norm.weight", shape.rms_norm_eps)
    if shape.tie_word_embeddings:
        logits = ops.matmul(hidden, embedding, False, True, name="__module.lm_head/aten::linear/MatMul")
    else:
        logits = linear(hidden, weights, "lm_head.weight")
    logits.output(0).set_names({"logits"})
    model = ov.Model([ops.result(logits)], stores, list(inputs), shape.name)
    # As optimum-intel writes them: GPUs, which compute in f16, scale activations down by the first; the
    # second keeps the cache of an uncompressed model in 16 bits, on every device.
    model.set_rt_info("8.0", ["runtime_options", "ACTIVATIONS_SCALE_FACTOR"])
    if weight_format in ("fp16", "fp32"):
        model.set_rt_info("f16", ["runtime_options", "KV_CACHE_PRECISION"])
    return model


def parameter(name: str, dtype: ov.Type, *dims: int) -> ov.Node:
    """An input of the model; -1: a dynamic dimension."""
    parameter = ops.parameter(ov.PartialShape(list(dims)), dtype, name=name)
    parameter.output(0).set_names({name})
    return parameter


class TextInputs(NamedTuple):
    """The inputs of a stateful decoder, as optimum-intel names them."""

    ids: ov.Node
    mask: ov.Node
    positions: ov.Node
    beam_idx: ov.Node


def text_inputs() -> TextInputs:
    """Inputs for any numbers of rows."""
    names = ("input_ids", "attention_mask", "position_ids")
    ids, mask, positions = (parameter(name, ov.Type.i64, -1, -1) for name in names)
    return TextInputs(ids, mask, positions, parameter("beam_idx", ov.Type.i32, -1))


def embed(table: ov.Node, ids: ov.Node) -> ov.Node:
    """Rows of an embedding by their tokens, i64 ``[batch, rows]``."""
    return ops.gather(table, ops.convert(ids, "i32"), i64_scalar(0))


def kv_states(shape: ModelShape, inputs: TextInputs) -> list[tuple[KVState, KVState]]:
    """The states of every layer's keys and values."""
    batch = ops.gather(ops.shape_of(inputs.ids, "i64"), i64(0), i64_scalar(0))

    def state(layer: int, part: str) -> KVState:
        # optimum-intel joins the names of the input and the output that the state replaces.
        variable_id = f"past_key_values.{layer}.{part}present.{layer}.{part}"
        return KVState.create(shape, variable_id, batch, inputs.beam_idx)

    return [(state(layer, "key"), state(layer, "value")) for layer in range(shape.num_hidden_layers)]


def shared_inputs(
    shape: ModelShape, inputs: TextInputs, hidden: ov.Node, states: list[tuple[KVState, KVState]]
) -> AttentionInputs:
    """What all layers share, for rows ``[batch, rows, hidden]`` behind what the states hold."""
    past, rows = size_of(states[0][0].past, 2), size_of(hidden, 1)
    total = ops.add(past, rows)
    mask = causal_mask(inputs.mask, past, rows, total)
    return AttentionInputs(
        rope_tables(shape, inputs.positions), mask, ops.reshape(total, i64(1), special_zero=False)
    )


def decoder_layer(
    hidden: ov.Node,
    shape: ModelShape,
    weights: Weights,
    prefix: str,
    shared: AttentionInputs,
    states: tuple[KVState, KVState],
    **rotary: Any,
) -> tuple[ov.Node, list[ov.Node]]:
    """The rows behind a layer, and the Assigns of its states; further arguments as of `attention`."""
    normed = rms_norm(hidden, weights, f"{prefix}.input_layernorm.weight", shape.rms_norm_eps)
    mixed, stores = attention(normed, shape, weights, f"{prefix}.self_attn", shared, states, **rotary)
    return add_ffn(ops.add(hidden, mixed), shape, weights, prefix), stores


def add_ffn(hidden: ov.Node, shape: ModelShape, weights: Weights, prefix: str) -> ov.Node:
    """The residual stream behind a layer's feed-forward part."""
    normed = rms_norm(hidden, weights, f"{prefix}.post_attention_layernorm.weight", shape.rms_norm_eps)
    if shape.is_moe:
        return ops.add(hidden, moe_ffn(normed, shape, weights, f"{prefix}.mlp"))
    return ops.add(hidden, dense_ffn(normed, weights, f"{prefix}.mlp"))
