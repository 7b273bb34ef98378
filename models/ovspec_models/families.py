"""Families of models: what can be sparse in each, what stays dense, and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """Facts about the models of one family; the family tests check every entry.

    Attributes:
        name: as its authors write it.
        model_types: its ``model_type`` in ``config.json``.
        attention: which verification attention can be sparse.
        ffn: the same for feed-forward layers; empty if the family has experts instead.
        experts: the same for routed experts; empty if it has none.
        note: what a user should know.
        refused: why its models are refused; empty if they are supported.
    """

    name: str
    model_types: tuple[str, ...]
    attention: str
    ffn: str
    experts: str = ""
    note: str = ""
    refused: str = ""


_FULL = "sparse"
_ALTERNATING = "sparse; layers with a sliding window dense, as they read little"
_WINDOWED = "dense where the model has a sliding window, which reads little; sparse without one"
_CONVOLVED = "sparse; layers of short convolutions keep a state of the text, as large for any context"
_RECURRENT = "on CPUs; drafts are chains; prompts share nothing"
_GATED = "sparse with `ffn_density` (GatedMLP)"
_PLAIN = "dense: not a gated MLP"
_ROUTED = "SparseMoE; sparse with `expert_budget`"
_LOST_ALIBI = "OpenVINO's paged attention loses its ALiBi bias; run it with optimum-intel"

FAMILIES = (
    Family("Llama", ("llama",), _FULL, _GATED),
    Family("Qwen2", ("qwen2",), _FULL, _GATED),
    Family("Qwen3", ("qwen3",), _FULL, _GATED),
    Family(
        "Qwen3.5",
        ("qwen3_5_text",),
        "sparse; layers of linear attention keep a state of the text, which is as large for any context",
        _GATED,
        note=f"also the text part of models with images; {_RECURRENT}",
    ),
    Family(
        "Qwen3-Next",
        ("qwen3_next",),
        "sparse; layers of linear attention keep a state of the text, which is as large for any context",
        f"the shared expert: {_GATED}",
        _ROUTED,
        _RECURRENT,
    ),
    Family("Qwen2-MoE", ("qwen2_moe",), _FULL, f"the shared expert: {_GATED}", _ROUTED),
    Family(
        "Qwen3-MoE", ("qwen3_moe",), _FULL, "", _ROUTED, note="with use_sliding_window every layer is dense"
    ),
    Family("Mixtral", ("mixtral",), _FULL, "", _ROUTED),
    Family("Mistral", ("mistral",), _WINDOWED, _GATED),
    Family(
        "Phi-3",
        ("phi3",),
        _WINDOWED,
        _GATED,
        note="long RoPE: a text that grows past original_max_position_embeddings is computed anew, once; "
        "verify='commit' is refused for it",
    ),
    Family("Gemma", ("gemma",), _FULL, _GATED),
    Family(
        "Gemma 2",
        ("gemma2",),
        _ALTERNATING,
        _GATED,
        note="attention without its soft-capping, as in transformers with its default (sdpa) attention",
    ),
    Family(
        "Gemma 3",
        ("gemma3_text",),
        _ALTERNATING,
        _GATED,
        note="text models, and those with [pictures](pictures.md)",
    ),
    Family(
        "Gemma 3n",
        ("gemma3n_text",),
        _ALTERNATING,
        _GATED,
        note="text models; the last layers read the keys and values of earlier ones",
    ),
    Family(
        "Gemma 4",
        ("gemma4_text",),
        _ALTERNATING,
        _GATED,
        note="text models; the last layers of some read the keys and values of earlier ones",
    ),
    Family("LFM2", ("lfm2",), _CONVOLVED, _GATED, note=_RECURRENT),
    Family("LFM2-MoE", ("lfm2_moe",), _CONVOLVED, _GATED, _ROUTED, _RECURRENT),
    Family("GLM", ("glm", "glm4"), _FULL, _GATED),
    Family("Granite", ("granite",), _FULL, _GATED),
    Family("Granite-MoE", ("granitemoe",), _FULL, "", _ROUTED),
    Family(
        "Granite 4 hybrid",
        ("granitemoehybrid",),
        "sparse; layers of Mamba 2 keep a state of the text, which is as large for any context",
        f"the shared expert: {_GATED}",
        _ROUTED,
        _RECURRENT,
    ),
    Family(
        "Llama 4",
        ("llama4_text",),
        _FULL,
        f"the shared expert: {_GATED}",
        note="text models; inside the first chunk of attention_chunk_size tokens, a longer text is refused",
    ),
    Family("SmolLM3", ("smollm3",), _FULL, _GATED, note="layers without RoPE are as sparse as the others"),
    Family("OLMo 2", ("olmo2",), _FULL, _GATED),
    Family("Cohere", ("cohere",), _FULL, _GATED),
    Family("StarCoder2", ("starcoder2",), _WINDOWED, _PLAIN),
    Family("GPT-OSS", ("gpt_oss",), _ALTERNATING, "", _ROUTED, "attention sinks are kept"),
    Family("AFMoE", ("afmoe",), _ALTERNATING, f"the shared and the dense ones: {_GATED}", _ROUTED),
    Family("Falcon", ("falcon",), _FULL, _PLAIN, note=f"with alibi=true refused: {_LOST_ALIBI}"),
    Family("Bloom", ("bloom",), "dense, with attention='stock' only: VerifyAttention has no ALiBi", _PLAIN),
    Family("MPT", ("mpt",), "", "", refused=_LOST_ALIBI),
)

#: Text parts of models that read pictures, whose types have no text models of their own.
OF_PICTURES = (
    Family("Qwen2.5-VL", ("qwen2_5_vl_text",), _FULL, _GATED),
    Family("Qwen3-VL", ("qwen3_vl_text",), _FULL, _GATED),
)


def family_of(model_type: str) -> Family | None:
    """The family of a ``model_type``, `None` for one that was not tested."""
    return next((family for family in (*FAMILIES, *OF_PICTURES) if model_type in family.model_types), None)
