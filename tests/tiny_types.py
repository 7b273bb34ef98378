"""Tiny random configurations of model types, made from the names that their configurations have."""

from __future__ import annotations

import inspect
from typing import Any

from tiny_checkpoints import VOCAB, WINDOW

_WINDOWED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
_LATENT = {"kv_lora_rank": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16}
# Every name that a configuration has is given, in whatever words.
_SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"), 64),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "intermediate_size_mlp"), 96),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "attention_heads", "n_heads"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 512),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("n_shared_experts", "n_group", "topk_group", "pad_token_id"), 1),
    **dict.fromkeys(("bos_token_id", "eos_token_id"), 0),
    **dict.fromkeys(("initializer_range", "init_std"), 0.2),
    "vocab_size": VOCAB,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rotary_dim": 8,
    "shared_intermediate_size": 32,
    "linear_conv_kernel_dim": 4,
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 16),
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
#: What two layers of that size need beside it.
_EXTRAS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("cohere2", "exaone4", "exaone_moe", "ministral", "olmo3"), _WINDOWED),
    "vaultgemma": {**_WINDOWED, "query_pre_attn_scalar": 16},
    "deepseek_v2": {**_LATENT, "q_lora_rank": None},
    "deepseek_v3": {**_LATENT, "q_lora_rank": 16, "first_k_dense_replace": 1},
    **{key: {"first_k_dense_replace": 1} for key in ("dots1", "glm4_moe")},
    "gpt_neo": {"attention_types": [[["global"], 2]]},
    **{key: {"num_key_value_heads": 4} for key in ("phi", "persimmon")},
    "qwen3_5_moe_text": {"layer_types": ["linear_attention", "full_attention"]},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64},
    },
    "zamba2": {
        "layer_types": ["mamba", "hybrid"],
        "layers_block_type": ["mamba", "hybrid"],
        "hybrid_layer_ids": [1],
        "n_mamba_heads": 8,
        "mamba_headdim": 16,
        "adapter_rank": 8,
    },
}


def tiny_config(model_type: str) -> Any:
    """A configuration of transformers, two layers of 64 channels; `WINDOW` where layers have windows."""
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[model_type]
    names = {*vars(kind()), *inspect.signature(kind.__init__).parameters, *kind.attribute_map}
    sizes = {name: value for name, value in _SIZES.items() if name in names}
    return kind(**{**sizes, **_EXTRAS.get(model_type, {})})
