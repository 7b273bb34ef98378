"""Switches of the families' configurations, each away from what the tiny checkpoint has."""

from __future__ import annotations

from random import Random
from typing import Any

Switch = dict[str, Any]

_BIAS = {"attention_bias": True}
_WINDOWS = {"use_sliding_window": True, "sliding_window": 24}
_WINDOWS_FROM_1 = {**_WINDOWS, "max_window_layers": 1}
_GELU = {"hidden_act": "gelu"}
_PART = {"rope_type": "default", "rope_theta": 1e4}
_MULTIPLIERS: tuple[Switch, ...] = (
    {"embedding_multiplier": 12.0},
    {"residual_multiplier": 0.22},
    {"logits_scaling": 8.0},
    {"attention_multiplier": 0.02},
)


def _rotating(*parts: float) -> tuple[Switch, ...]:
    """RoPE of that part of a head."""
    return tuple({"rope_parameters": {**_PART, "partial_rotary_factor": part}} for part in parts)


_DENSE_FIRST = {"mlp_only_layers": [0]}
_QWEN: tuple[Switch, ...] = (_WINDOWS_FROM_1, _GELU)
_GEMMA_4: tuple[Switch, ...] = (_BIAS, {"final_logit_softcapping": 5.0})
_MAMBA: tuple[Switch, ...] = (
    *(_BIAS, {"mamba_conv_bias": False}, {"mamba_proj_bias": True}, {"mamba_n_groups": 2}),
    *_MULTIPLIERS,
)
_AFMOE: tuple[Switch, ...] = (_BIAS, {"route_scale": 2.0}, {"mup_enabled": True})
#: By family; what a family does not have stands nowhere.
SWITCHES: dict[str, tuple[Switch, ...]] = {
    "Llama": (_BIAS, {"mlp_bias": True}, _GELU),
    "Qwen2": _QWEN,
    "Qwen3": (_BIAS, *_QWEN),
    "Qwen3.5": (_BIAS, *_rotating(0.5, 1.0)),
    "Qwen3-Next": (_BIAS, {"norm_topk_prob": False}, _DENSE_FIRST, *_rotating(0.5, 1.0)),
    "Qwen2-MoE": ({"qkv_bias": False}, {"norm_topk_prob": True}, _DENSE_FIRST, _WINDOWS_FROM_1),
    "Qwen3-MoE": (_BIAS, {"norm_topk_prob": False}, {"decoder_sparse_step": 2}, _DENSE_FIRST, _WINDOWS),
    "Mixtral": ({"sliding_window": 24},),
    "Mistral": (_GELU,),
    "Gemma": (_BIAS,),
    "Gemma 2": (_BIAS, {"final_logit_softcapping": None}),
    "Gemma 3": (_BIAS, {"final_logit_softcapping": 5.0}),
    "Gemma 3n": (_BIAS, {"final_logit_softcapping": 5.0}),
    "Gemma 4": (*_GEMMA_4, {"use_double_wide_mlp": True}, {"hidden_size_per_layer_input": 0}),
    "Gemma 4, experts": (*_GEMMA_4, {"attention_k_eq_v": False}),
    "LFM2": ({"conv_bias": True}, {"conv_L_cache": 4}),
    "LFM2-MoE": (
        *({"conv_bias": True}, {"norm_topk_prob": False}, {"use_expert_bias": False}),
        *({"routed_scaling_factor": 1.5}, {"num_dense_layers": 0}),
    ),
    "GLM": ({"attention_bias": False}, *_rotating(0.25, 1.0)),
    "GLM, 4": ({"attention_bias": False}, *_rotating(0.25, 1.0)),
    "Granite": (_BIAS, {"mlp_bias": True}, *_MULTIPLIERS),
    "Granite-MoE": (_BIAS, *_MULTIPLIERS),
    "Granite 4 hybrid": (*_MAMBA, {"num_local_experts": 0}),
    "Granite 4 hybrid, no positions and experts": _MAMBA[:3] + _MULTIPLIERS,
    "Llama 4": (
        *(_BIAS, {"use_qk_norm": False}, {"attn_temperature_tuning": False}),
        {"interleave_moe_layer_step": 2},
    ),
    "SmolLM3": (_BIAS, {"mlp_bias": True}, _WINDOWS),
    "OLMo 2": (_BIAS,),
    "Cohere": (_BIAS, {"use_qk_norm": True}, {"logit_scale": 0.5}),
    "StarCoder2": ({"use_bias": False},),
    "GPT-OSS": ({"attention_bias": False},),
    "AFMoE": _AFMOE,
    "AFMoE, no shared experts": _AFMOE,
    "Falcon": ({"bias": True}, {"parallel_attn": False}, {"multi_query": False}),
    "Falcon, new architecture": ({"bias": True}, {"num_ln_in_parallel_attn": 1}),
    "Bloom": ({"apply_residual_connection_post_layernorm": True},),
}


def draw_switches(rng: Random, family: str) -> dict[str, Any]:
    """Some of a family's switches."""
    drawn: dict[str, Any] = {}
    for switch in SWITCHES.get(family, ()):
        if rng.random() < 0.4:
            drawn |= switch
    return drawn
