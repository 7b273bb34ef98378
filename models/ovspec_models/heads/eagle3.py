"""An EAGLE-3 head (arXiv 2503.01840) as a stateful graph, as optimum-intel would export it."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops

from ovspec_models.folder.head_info import BOUNDARIES, OWN_EMBEDDING
from ovspec_models.heads.checkpoint import CheckpointWeights, HeadCheckpoint, head_model, is_buffer
from ovspec_models.heads.settings import AS_COMPUTED, OF_LAYERS, HeadSettings
from ovspec_models.shapes import ModelShape
from ovspec_models.synthetic.attention import attention
from ovspec_models.synthetic.decoder import add_ffn, embed, kv_states, parameter, shared_inputs, text_inputs
from ovspec_models.synthetic.layers import linear, rms_norm

# The layer's name in checkpoints: of the paper's authors, and of others.
_LAYERS = ("midlayer", "layers.0")
_PARTS = (
    "hidden_norm",
    "input_layernorm",
    "post_attention_layernorm",
    *(f"self_attn.{part}_proj" for part in "qkvo"),
    *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
)
_EMBEDDING = "embed_tokens.weight"
EAGLE3_SETTINGS = HeadSettings(
    read=(*OF_LAYERS, "draft_vocab_size"),
    values={
        **AS_COMPUTED,
        "num_hidden_layers": (1,),
        "norm_before_residual": (False, True),
        "norm_before_fc": (False,),
        "fc_norm": (False,),
        "norm_output": (False,),
        "eagle_config.use_aux_hidden_state": (True,),
        "eagle_config.use_input_layernorm_in_first_layer": (True,),
        "eagle_config.use_last_layernorm": (True,),
        "eagle_config.use_mtp_layernorm": (False,),
        "eagle_config.norm_before_fc": (False,),
    },
    inside={"eagle_config": (BOUNDARIES,)},
)


def eagle3_model(checkpoint: HeadCheckpoint, weight_format: str | None = None) -> ov.Model:
    """The graph of a head.

    Inputs ``input_ids``, ``hidden_states`` f32 ``[batch, rows, states]``, ``attention_mask``,
    ``position_ids``, ``beam_idx``; outputs ``logits`` over the draft's vocabulary, and ``d2t``. A head
    without an embedding of its own gets one of a single row; the target's replaces it when it is loaded.

    Raises:
        ValueError: a weight is missing, or has a wrong shape; `d2t` is missing.
    """
    arrays = eagle3_arrays(checkpoint)
    config, head = checkpoint.config, arrays["lm_head.weight"]
    shape = checkpoint.shape(len(head))
    _check_shapes(checkpoint, arrays, shape)
    weights = CheckpointWeights(arrays, weight_format == "fp32")
    inputs, eps = text_inputs(), shape.rms_norm_eps
    states = parameter("hidden_states", ov.Type.f32, -1, -1, arrays["fc.weight"].shape[1])
    embedded = embed(weights.matrix(_EMBEDDING), inputs.ids)
    features = linear(states, weights, "fc.weight")
    normed = rms_norm(features, weights, "layer.hidden_norm.weight", eps)
    both = ops.concat([rms_norm(embedded, weights, "layer.input_layernorm.weight", eps), normed], -1)
    caches = kv_states(shape, inputs)
    shared = shared_inputs(shape, inputs, features, caches)
    mixed, stores = attention(both, shape, weights, "layer.self_attn", shared, caches[0])
    hidden = ops.add(normed if config.get("norm_before_residual") else features, mixed)
    hidden = add_ffn(hidden, shape, weights, "layer")
    outputs = {"logits": linear(rms_norm(hidden, weights, "norm.weight", eps), weights, "lm_head.weight")}
    if "d2t" in arrays:
        outputs["d2t"] = ops.constant(arrays["d2t"].astype(np.int64))
    return head_model("eagle3", outputs, [inputs.ids, states, *inputs[1:]], stores)


def eagle3_arrays(checkpoint: HeadCheckpoint) -> dict[str, NDArray[Any]]:
    """The weights by the names of the graph.

    Raises:
        ValueError: a weight is missing, or `d2t` where the head has a vocabulary of its own.
    """

    def found(name: str) -> NDArray[Any]:
        return checkpoint.array(name, f"model.{name}")

    arrays = {name: found(name) for name in ("fc.weight", "norm.weight", "lm_head.weight")}
    for part in _PARTS:
        names = [f"{layer}.{part}.weight" for layer in _LAYERS]
        arrays[f"layer.{part}.weight"] = checkpoint.array(*names, *(f"model.{name}" for name in names))
    for name in ("d2t", f"model.{_EMBEDDING}", _EMBEDDING):
        if name in checkpoint.arrays:
            arrays[name.removeprefix("model.")] = checkpoint.arrays[name]
    drafted, vocab_size = len(arrays["lm_head.weight"]), checkpoint.config.get("vocab_size")
    if "d2t" not in arrays and drafted != vocab_size:
        raise ValueError(
            f"head '{checkpoint.folder}' drafts {drafted} of {vocab_size} tokens and has no d2t, which says "
            "of which; get the whole checkpoint"
        )
    if _EMBEDDING not in arrays:
        arrays[_EMBEDDING] = np.zeros((1, len(arrays["norm.weight"])), np.float32)
    return arrays


def eagle3_ignores(name: str) -> bool:
    """Whether a weight changes nothing: which tokens it can draft, d2t says too."""
    return name.removeprefix("model.") == "t2d" or is_buffer(name)


def eagle3_facts(checkpoint: HeadCheckpoint) -> dict[str, Any]:
    """What config.json of the exported folder says beside the published one."""
    own = any(name in checkpoint.arrays for name in (_EMBEDDING, f"model.{_EMBEDDING}"))
    return {OWN_EMBEDDING: own, "num_hidden_layers": 1}


def _check_shapes(checkpoint: HeadCheckpoint, arrays: dict[str, NDArray[Any]], shape: ModelShape) -> None:
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries = shape.num_attention_heads * shape.head_dim
    keys = shape.num_key_value_heads * shape.head_dim
    expected: dict[str, tuple[int, ...]] = {
        "layer.self_attn.q_proj.weight": (queries, 2 * hidden),
        "layer.self_attn.k_proj.weight": (keys, 2 * hidden),
        "layer.self_attn.v_proj.weight": (keys, 2 * hidden),
        "layer.self_attn.o_proj.weight": (hidden, queries),
        "layer.mlp.gate_proj.weight": (inner, hidden),
        "layer.mlp.down_proj.weight": (hidden, inner),
        "lm_head.weight": (shape.vocab_size, hidden),
        "norm.weight": (hidden,),
        "fc.weight": (hidden, arrays["fc.weight"].shape[-1]),
    }
    for name, wanted in expected.items():
        checkpoint.check_shape(name, arrays[name], wanted)
