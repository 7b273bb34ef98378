"""Checkpoints of every family with random weights, two layers deep, in the demo pair's vocabulary.

Weights are drawn ten times as wide as for training, so that attention is far from uniform: a window, a bias
or a rotation that is lost changes every logit.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tiers
from tiny_sizes import (
    AFMOE,
    ALIKE,
    ALTERNATING,
    CHUNK,
    EXPERTS,
    FALCON,
    LINEAR,
    LLAMA_ROPE,
    LONG_FROM,
    LONG_ROPE,
    MAMBA,
    TOKENS,
    VOCAB,
    WINDOW,
)

_DEMO = Path(__file__).parents[1] / "tools" / "demo" / "draft"


@dataclass(frozen=True)
class Tiny:
    """One checkpoint.

    Attributes:
        config: class in transformers.
        sizes: its arguments.
        windows: the window of every layer that attends to the text, 0 for none.
        gated: layers whose feed-forward part GatedMLP replaces.
        moe_layers: layers whose experts SparseMoE replaces.
        lacks: arguments without which the model must compute something else, so that what they bring is
            known to be exercised.
    """

    config: str
    sizes: dict[str, Any] = field(default_factory=dict)
    windows: tuple[int, ...] = (0, 0)
    gated: int = 0
    moe_layers: int = 0
    lacks: dict[str, Any] = field(default_factory=dict)


def _tiny(
    config: str, *windows: int, gated: int = 2, moe_layers: int = 0, lacks: Any = None, **sizes: Any
) -> Tiny:
    return Tiny(config, {**ALIKE, **sizes}, windows or (0, 0), gated, moe_layers, lacks or {})


#: By the name of their family; variants have a suffix after a comma. Windows are shorter than the tests'
#: prompts, and so is the length from which Phi-3's RoPE is long.
TINY: dict[str, Tiny] = {
    "Llama": _tiny("LlamaConfig", rope_parameters=LLAMA_ROPE, lacks={"rope_parameters": None}),
    "Qwen2": _tiny("Qwen2Config"),
    "Qwen3": _tiny("Qwen3Config", head_dim=32),
    "Qwen3.5": _tiny(
        "Qwen3_5TextConfig",
        0,
        head_dim=32,
        **LINEAR,
        lacks={"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}},
    ),
    "Qwen3-Next": _tiny(
        "Qwen3NextConfig",
        0,
        moe_layers=2,
        head_dim=32,
        **LINEAR,
        **EXPERTS,
        shared_expert_intermediate_size=32,
    ),
    "Qwen2-MoE": _tiny(
        "Qwen2MoeConfig",
        moe_layers=2,
        **EXPERTS,
        shared_expert_intermediate_size=32,
    ),
    "Qwen3-MoE": _tiny(
        "Qwen3MoeConfig",
        gated=0,
        moe_layers=2,
        head_dim=32,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        norm_topk_prob=True,
    ),
    "Qwen3-MoE, windows": _tiny(
        "Qwen3MoeConfig",
        WINDOW,
        WINDOW,
        gated=0,
        moe_layers=2,
        head_dim=32,
        **EXPERTS,
        use_sliding_window=True,
        sliding_window=WINDOW,
        lacks={"use_sliding_window": False},
    ),
    "Mixtral": _tiny("MixtralConfig", gated=0, moe_layers=2, num_local_experts=4, num_experts_per_tok=2),
    "Mistral": _tiny("MistralConfig", WINDOW, WINDOW, sliding_window=WINDOW, lacks={"sliding_window": None}),
    "Phi-3": _tiny(
        "Phi3Config",
        rope_parameters=LONG_ROPE,
        original_max_position_embeddings=LONG_FROM,
        lacks={"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    ),
    "Gemma": _tiny("GemmaConfig", head_dim=32),
    "Gemma 2": _tiny(
        "Gemma2Config",
        WINDOW,
        0,
        head_dim=32,
        query_pre_attn_scalar=32,
        final_logit_softcapping=5.0,
        **ALTERNATING,
        lacks={"final_logit_softcapping": None},
    ),
    "Gemma 3": _tiny(
        "Gemma3TextConfig",
        WINDOW,
        0,
        head_dim=32,
        query_pre_attn_scalar=32,
        **ALTERNATING,
        lacks={"sliding_window": 500},
    ),
    "Gemma 3n": _tiny(
        "Gemma3nTextConfig",
        *(WINDOW, 0, WINDOW, 0),
        gated=3,
        num_hidden_layers=4,
        intermediate_size=[96] * 4,
        activation_sparsity_pattern=[0.5, 0.0, 0.0, 0.0],
        num_kv_shared_layers=2,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention"] * 2,
        head_dim=16,
        vocab_size_per_layer_input=VOCAB,
        hidden_size_per_layer_input=16,
        laurel_rank=8,
        lacks={"sliding_window": 500},
    ),
    "Gemma 4": _tiny(
        "Gemma4TextConfig",
        *(WINDOW, 0, WINDOW, 0),
        gated=4,
        num_hidden_layers=4,
        num_kv_shared_layers=2,
        **{**ALTERNATING, "layer_types": ["sliding_attention", "full_attention"] * 2},
        head_dim=16,
        global_head_dim=32,
        vocab_size_per_layer_input=VOCAB,
        hidden_size_per_layer_input=16,
        lacks={"sliding_window": 500},
    ),
    "Gemma 4, experts": _tiny(
        "Gemma4TextConfig",
        WINDOW,
        0,
        **ALTERNATING,
        head_dim=16,
        global_head_dim=32,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        hidden_size_per_layer_input=0,
        enable_moe_block=True,
        num_experts=4,
        top_k_experts=2,
        moe_intermediate_size=32,
        num_kv_shared_layers=0,
    ),
    "LFM2": _tiny(
        "Lfm2Config",
        0,
        layer_types=["conv", "full_attention"],
        conv_L_cache=3,
        block_auto_adjust_ff_dim=False,
    ),
    "LFM2-MoE": _tiny(
        "Lfm2MoeConfig",
        0,
        gated=1,
        moe_layers=1,
        layer_types=["conv", "full_attention"],
        **EXPERTS,
        num_dense_layers=1,
    ),
    "GLM": _tiny(
        "GlmConfig",
        head_dim=16,
        lacks={"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}},
    ),
    "GLM, 4": _tiny("Glm4Config", head_dim=16),
    "Granite": _tiny(
        "GraniteConfig",
        embedding_multiplier=4.0,
        attention_multiplier=0.1,
        residual_multiplier=0.5,
        logits_scaling=2.0,
        lacks={"attention_multiplier": 0.25},
    ),
    "Granite-MoE": _tiny(
        "GraniteMoeConfig",
        gated=0,
        moe_layers=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        attention_multiplier=0.1,
        residual_multiplier=0.5,
    ),
    "Granite 4 hybrid": _tiny(
        "GraniteMoeHybridConfig",
        0,
        moe_layers=2,
        **MAMBA,
        num_local_experts=4,
        position_embedding_type="rope",
        attention_multiplier=0.1,
        residual_multiplier=0.5,
        lacks={"position_embedding_type": None},
    ),
    "Granite 4 hybrid, no positions and experts": _tiny(
        "GraniteMoeHybridConfig", 0, **MAMBA, mamba_n_groups=2, num_local_experts=0
    ),
    # transformers asks its cache of attention alone for a state of Mamba: its reference goes without a cache.
    "Granite 4 hybrid, attention alone": _tiny(
        "GraniteMoeHybridConfig",
        gated=2,
        **{**MAMBA, "layer_types": ["attention"] * 2},
        num_local_experts=0,
        position_embedding_type="rope",
        use_cache=False,
    ),
    "Llama 4": _tiny(
        "Llama4TextConfig",
        intermediate_size_mlp=96,
        head_dim=32,
        num_local_experts=4,
        num_experts_per_tok=1,
        attention_chunk_size=CHUNK,
        floor_scale=CHUNK + 40,
        interleave_moe_layer_step=1,
        no_rope_layers=[1, 0],
        lacks={"no_rope_layers": [1, 1]},
    ),
    "SmolLM3": _tiny("SmolLM3Config", no_rope_layers=[1, 0], lacks={"no_rope_layers": [1, 1]}),
    "OLMo 2": _tiny("Olmo2Config"),
    "Cohere": _tiny("CohereConfig"),
    "StarCoder2": _tiny(
        "Starcoder2Config", WINDOW, WINDOW, gated=0, sliding_window=WINDOW, lacks={"sliding_window": None}
    ),
    "GPT-OSS": _tiny(
        "GptOssConfig",
        WINDOW,
        0,
        gated=0,
        moe_layers=2,
        head_dim=32,
        num_local_experts=4,
        num_experts_per_tok=2,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        **ALTERNATING,
        lacks={"sliding_window": 500},
    ),
    "AFMoE": _tiny("AfmoeConfig", WINDOW, 0, moe_layers=1, **AFMOE, lacks={"sliding_window": 500}),
    "AFMoE, no shared experts": _tiny(
        "AfmoeConfig", WINDOW, 0, moe_layers=1, **{**AFMOE, "num_shared_experts": 0}
    ),
    "Falcon": Tiny("FalconConfig", {**FALCON, "alibi": False}),
    "Bloom": Tiny(
        "BloomConfig",
        {
            "vocab_size": VOCAB,
            "hidden_size": 64,
            "n_layer": 2,
            "n_head": 4,
            "initializer_range": 0.2,
            **TOKENS,
        },
    ),
    "MPT": Tiny(
        "MptConfig",
        {
            "vocab_size": VOCAB,
            "d_model": 64,
            "n_layers": 2,
            "n_heads": 4,
            "initializer_range": 0.2,
            **TOKENS,
        },
    ),
    "Falcon, ALiBi": Tiny("FalconConfig", {**FALCON, "alibi": True}),
    "Falcon, new architecture": Tiny(
        "FalconConfig", {**FALCON, "alibi": False, "new_decoder_architecture": True, "num_kv_heads": 2}
    ),
}


# One family of each kind: scaled RoPE, linear attention, two RoPEs and windows, experts with sinks, ALiBi,
# and one that is refused.
FIRST = ("Llama", "Qwen3.5", "Gemma 3", "GPT-OSS", "Bloom", "MPT")


def by_tier(names: Iterable[str]) -> list[Any]:
    """Families as parameters of a test: `make test` takes one of each kind, `make test-slow` the others."""
    return tiers.by_tier(names, FIRST)


def random_model(tiny: Tiny, **changes: Any) -> Any:
    """The model in f32, on the CPU; the same weights for the same sizes."""
    import torch
    import transformers

    torch.manual_seed(3)
    config = getattr(transformers, tiny.config)(**{**tiny.sizes, **changes})
    return with_noise(transformers.AutoModelForCausalLM.from_config(config).to(torch.float32).eval())


def with_noise(model: Any) -> Any:
    """The model, in place, with noise on factors of one, biases of zero and routers of zero.

    Export would fold them out of the graph, and a router of zero chooses nothing.
    """
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1 or not parameter.any():
                parameter += 0.2 * torch.randn_like(parameter)
    return model


def write_checkpoint(tiny: Tiny, folder: Path) -> Path:
    """Save the model with the demo pair's tokenizer in the new `folder`."""
    return save_checkpoint(random_model(tiny), folder)


def save_checkpoint(model: Any, folder: Path) -> Path:
    """Save a model of transformers with the demo pair's tokenizer in the new `folder`."""
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(_DEMO / name, folder)
    return folder


def export_tiny(name: str, folder: Path, weight_format: str = "fp32", **options: Any) -> Path:
    """Export one of `TINY` below `folder`; return the exported folder, which lies beside the checkpoint."""
    from ovspec_models import export_model

    checkpoint = write_checkpoint(TINY[name], folder / "checkpoint")
    return export_model(checkpoint, folder / "ir", weight_format=weight_format, **options)
