"""A multi-token prediction module (DeepSeek-V3, arXiv 2412.19437) as a stateful graph.

It lies in its target's checkpoint: one decoder layer over the embedding of the next token and the state that
the target's output layer reads, and a norm before that output layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops

from ovspec_models.folder.head_info import FORMAT, OWN_EMBEDDING, TARGET_LAYERS
from ovspec_models.folder.shown import shown
from ovspec_models.heads.checkpoint import CheckpointWeights, HeadCheckpoint, head_model, is_buffer
from ovspec_models.heads.settings import AS_COMPUTED, OF_LAYERS, HeadSettings
from ovspec_models.shapes import ModelShape
from ovspec_models.synthetic.decoder import (
    decoder_layer,
    embed,
    kv_states,
    parameter,
    shared_inputs,
    text_inputs,
)
from ovspec_models.synthetic.layers import linear, rms_norm

_EMBEDDING, _OUTPUT = "embed_tokens.weight", "lm_head.weight"
# The graph's names, and the checkpoints' of DeepSeek's kind, of Qwen's and of speculators.
_NAMES = {
    "enorm": ("enorm", "pre_fc_norm_embedding", "token_layernorm"),
    "hnorm": ("hnorm", "pre_fc_norm_hidden", "hidden_layernorm"),
    "eh_proj": ("eh_proj", "fc", "input_proj"),
    "norm": ("shared_head.norm", "norm", "final_layernorm"),
}
_QWEN, _SPECULATORS = 1, 2
# Of the target in whose config.json the module lies: layers of another kind, experts, images.
_OF_TARGET = (
    *("layer_types", "full_attention_interval", "linear_conv_kernel_dim", "linear_key_head_dim"),
    *("linear_value_head_dim", "linear_num_key_heads", "linear_num_value_heads", "mamba_ssm_dtype"),
    *("vision_config", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"),
    *(
        "decoder_sparse_step",
        "mlp_only_layers",
        "moe_intermediate_size",
        "num_experts",
        "num_experts_per_tok",
    ),
    *("norm_topk_prob", "shared_expert_intermediate_size", "router_aux_loss_coef", "output_router_logits"),
    *("n_routed_experts", "n_shared_experts", "first_k_dense_replace", "routed_scaling_factor", "n_group"),
    *("topk_group", "topk_method", "scoring_func", "moe_layer_freq", "aux_loss_alpha", "seq_aux", "ep_size"),
    *("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
)
MTP_SETTINGS = HeadSettings(
    # A gate's rows are in the weight of the queries.
    read=(*OF_LAYERS, "num_hidden_layers", "partial_rotary_factor", "attn_output_gate", *_OF_TARGET),
    values={
        **{name: values for name, values in AS_COMPUTED.items() if name != "partial_rotary_factor"},
        "mtp_num_hidden_layers": (1,),
        "num_nextn_predict_layers": (1,),
        "mtp_use_dedicated_embeddings": (False,),
        "rope_interleave": (False,),
    },
)
# Targets of speculators' modules; the norms of some multiply by 1 + weight, as all with Qwen's names do.
_ONE_MORE, _PLAIN = ("qwen3_next", "qwen3_5"), ("qwen3",)


def mtp_model(checkpoint: HeadCheckpoint, weight_format: str | None = None) -> ov.Model:
    """The graph of a module.

    Inputs ``input_ids``, ``hidden_states`` f32 ``[batch, rows, hidden size]``, ``attention_mask``,
    ``position_ids``, ``beam_idx``; output ``logits``. Embedding and output layer have one token; the target's
    replace them when the head is loaded.

    Raises:
        ValueError: as `mtp_arrays`.
    """
    arrays = mtp_arrays(checkpoint)
    shape, rotated = _shape(checkpoint), _rotated(checkpoint)
    inputs, eps = text_inputs(), shape.rms_norm_eps
    weights = CheckpointWeights(arrays, weight_format == "fp32")
    states = parameter("hidden_states", ov.Type.f32, -1, -1, shape.hidden_size)
    embedded = embed(weights.matrix(_EMBEDDING), inputs.ids)
    both = [rms_norm(embedded, weights, "enorm.weight", eps), rms_norm(states, weights, "hnorm.weight", eps)]
    hidden = linear(ops.concat(both, -1), weights, "eh_proj.weight")
    caches = kv_states(shape, inputs)
    shared = shared_inputs(replace(shape, head_dim=rotated), inputs, hidden, caches)
    gated = len(arrays["layer.self_attn.q_proj.weight"]) > shape.num_attention_heads * shape.head_dim
    hidden, stores = decoder_layer(
        hidden, shape, weights, "layer", shared, caches[0], rotated=rotated, gated=gated
    )
    logits = linear(rms_norm(hidden, weights, "norm.weight", eps), weights, _OUTPUT)
    return head_model("mtp", {"logits": logits}, [inputs.ids, states, *inputs[1:]], stores)


def mtp_reads(config: dict[str, Any]) -> Callable[[str], bool]:
    """Which weights of a checkpoint are the module's; of several modules, the first's."""
    first = f"model.layers.{config.get('num_hidden_layers')}."
    return lambda name: name.startswith((first, "mtp.", "model.mtp.", "mtp_layers."))


def mtp_arrays(checkpoint: HeadCheckpoint) -> dict[str, NDArray[Any]]:
    """The weights by the names of the graph.

    Raises:
        ValueError: a weight is missing, has another shape, or is of a layer that is not known.
    """
    where = f"head '{checkpoint.folder}'"
    for part, what in (
        ("kv_a_proj", "multi-head latent attention"),
        (".experts.", "experts"),
        (".bias", "biases"),
    ):
        if any(part in name for name in checkpoint.arrays):
            raise ValueError(
                f"{where}: its layer has {what}, which MTP does not know yet; draft with another head"
            )
    ends = tuple(f"{name}.weight" for name in _NAMES["enorm"])
    found_names = [
        (name.removesuffix(end), names)
        for name in checkpoint.arrays
        for names, end in enumerate(ends)
        if name.endswith(f".{end}")
    ]
    if not found_names:
        raise ValueError(f"{where} has no weights of an MTP module; take the checkpoint that has them")
    prefix, names = found_names[0]
    _rotated(checkpoint)
    shape = _shape(checkpoint)
    hidden = shape.hidden_size
    wanted: dict[str, tuple[str, tuple[int, ...]]] = {
        f"{name}.weight": (f"{prefix}{theirs[names]}.weight", (hidden,)) for name, theirs in _NAMES.items()
    }
    wanted["eh_proj.weight"] = (wanted["eh_proj.weight"][0], (hidden, 2 * hidden))
    layer = f"{prefix}layers.0." if names == _QWEN else prefix
    for name, dims in shape.weight_shapes().items():
        if name.startswith("model.layers.0."):
            part = name.removeprefix("model.layers.0.")
            wanted[f"layer.{part}"] = (layer + part, dims)
    one_more = names == _QWEN or (names == _SPECULATORS and _multiplies_by_one_more(checkpoint))
    arrays: dict[str, NDArray[Any]] = {}
    for name, (theirs, dims) in wanted.items():
        sizes = [dims, (2 * dims[0], *dims[1:])] if name.endswith("q_proj.weight") else [dims]
        found = checkpoint.check_shape(theirs, checkpoint.array(theirs), *sizes)
        arrays[name] = found + 1 if one_more and found.ndim == 1 else found
    for name in (_EMBEDDING, _OUTPUT):
        arrays[name] = np.zeros((1, hidden), np.float32)
    return arrays


def _multiplies_by_one_more(checkpoint: HeadCheckpoint) -> bool:
    """Whether norms multiply by 1 + weight, which the names of speculators do not say."""
    kind = checkpoint.config.get("model_type")
    if isinstance(kind, str) and (kind.startswith(_ONE_MORE) or kind in _PLAIN):
        return kind not in _PLAIN
    raise ValueError(
        f"head '{checkpoint.folder}': model_type of config.json is {shown(kind)}, expected one of "
        f"{', '.join((*_PLAIN, *_ONE_MORE))}, by which its norms are read; get config.json again"
    )


def mtp_ignores(name: str) -> bool:
    """Whether a weight is a copy of the target's embedding or output layer, or the frequencies of an IR."""
    return name.endswith((_EMBEDDING, "shared_head.head.weight", "rotary_emb.weight")) or is_buffer(name)


def mtp_facts(checkpoint: HeadCheckpoint) -> dict[str, Any]:
    """What config.json of the exported folder says in place of the target's."""
    return {
        "architectures": ["MTPModel"],
        "text_config": None,
        "layer_types": None,
        OWN_EMBEDDING: False,
        # In speculators' the number may be the module's own.
        TARGET_LAYERS: 0 if FORMAT in checkpoint.config else checkpoint.config.get("num_hidden_layers"),
        "num_hidden_layers": 1,
    }


def _shape(checkpoint: HeadCheckpoint) -> ModelShape:
    return checkpoint.shape(
        1, qk_norm=any(name.endswith("self_attn.q_norm.weight") for name in checkpoint.arrays), partial=True
    )


def _rotated(checkpoint: HeadCheckpoint) -> int:
    """Channels of a head that have rotary positions."""
    rope = checkpoint.rope()
    share = checkpoint.number("partial_rotary_factor", checkpoint.number("partial_rotary_factor", 1.0, rope))
    channels = int(_shape(checkpoint).head_dim * min(share, 1.0))
    if channels < 2 or channels % 2:
        raise ValueError(
            f"head '{checkpoint.folder}': partial_rotary_factor {share:g} gives {channels} channels of a "
            "head positions, expected an even number; get config.json again"
        )
    return channels
