"""Sizes of tiny configurations, by what they are about."""

from __future__ import annotations

WINDOW = 48
LONG_FROM = 64
CHUNK = 160
VOCAB = 4096
TOKENS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
ALIKE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    **TOKENS,
}
ALTERNATING = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
MAMBA = {
    "layer_types": ["mamba", "attention"],
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "shared_intermediate_size": 32,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LLAMA_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0 + 0.02 * i for i in range(8)],
    "long_factor": [1.5 + 0.5 * i for i in range(8)],
    "original_max_position_embeddings": LONG_FROM,
}
AFMOE = {
    "head_dim": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "num_dense_layers": 1,
    "num_shared_experts": 1,
    "global_attn_every_n_layers": 2,
    "sliding_window": WINDOW,
}
FALCON = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "multi_query": True,
    "new_decoder_architecture": False,
    "initializer_range": 0.2,
    **TOKENS,
}
