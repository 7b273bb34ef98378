"""Shapes of public language models, for synthetic models with random weights."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

DEFAULT_VOCAB_SIZE = 32_000


def _need(name: str, value: object, good: bool, expected: str) -> None:
    if not good:
        raise ValueError(f"{name} is {value!r}, expected {expected}; correct the shape")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama 3's rescaling of the rotary frequencies (``rope_type: llama3`` in a Hugging Face config)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self) -> None:
        _need("factor", self.factor, self.factor >= 1.0, "a number >= 1")
        low, high = self.low_freq_factor, self.high_freq_factor
        _need("high_freq_factor", high, high > low > 0.0, f"a number above low_freq_factor={low}")
        original = self.original_max_position_embeddings
        _need("original_max_position_embeddings", original, original > 0, "a positive integer")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes that determine the graph of a decoder; field names are those of a Hugging Face ``config.json``.

    Covers decoders with RMSNorm, rotary positions, grouped query attention without biases and SwiGLU,
    dense (``num_experts == 0``) or with a mixture of experts in every layer. ``qk_norm``: RMSNorm over
    each query and key head, as in Qwen3. ``intermediate_size`` is the dense FFN's; a mixture of experts
    uses ``moe_intermediate_size`` in its place.

    Raises:
        ValueError: a size is not positive, or the sizes do not fit each other.
    """

    name: str
    model_type: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rope_theta: float
    qk_norm: bool
    tie_word_embeddings: bool
    vocab_size: int = DEFAULT_VOCAB_SIZE
    rms_norm_eps: float = 1e-6
    rope_scaling: RopeScaling | None = None
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0

    def __post_init__(self) -> None:
        moe_sizes = ("num_experts", "num_experts_per_tok", "moe_intermediate_size")
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, int) and not isinstance(value, bool):
                least = 0 if entry.name in moe_sizes else 1
                _need(entry.name, value, value >= least, f"an integer >= {least}")
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        _need("num_key_value_heads", kv_heads, heads % kv_heads == 0, f"a divisor of the {heads} query heads")
        _need("head_dim", self.head_dim, self.head_dim % 2 == 0, "an even number, rotary halves need it")
        _need("rope_theta", self.rope_theta, self.rope_theta > 1.0, "a number above 1")
        _need("rms_norm_eps", self.rms_norm_eps, self.rms_norm_eps > 0.0, "a positive number")
        if self.is_moe:
            top = self.num_experts_per_tok
            _need("num_experts_per_tok", top, 1 <= top <= self.num_experts, f"1 to {self.num_experts}")
            size = self.moe_intermediate_size
            _need("moe_intermediate_size", size, size > 0, "a positive integer when num_experts > 0")

    @property
    def is_moe(self) -> bool:
        """Whether the layers have a mixture of experts in place of the dense FFN."""
        return self.num_experts > 0

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight's name, as in a Hugging Face checkpoint, and its shape ``(out, in)``.

        Norm weights are vectors. The experts of a layer are one array ``[experts, out, in]`` per
        projection (``mlp.experts.gate_proj`` ...). Tied models have no ``lm_head.weight``.
        """
        hidden, head = self.hidden_size, self.head_dim
        weights: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, hidden)}
        for layer in range(self.num_hidden_layers):
            prefix = f"model.layers.{layer}"
            attention = f"{prefix}.self_attn"
            weights[f"{prefix}.input_layernorm.weight"] = (hidden,)
            weights[f"{attention}.q_proj.weight"] = (self.num_attention_heads * head, hidden)
            weights[f"{attention}.k_proj.weight"] = (self.num_key_value_heads * head, hidden)
            weights[f"{attention}.v_proj.weight"] = (self.num_key_value_heads * head, hidden)
            weights[f"{attention}.o_proj.weight"] = (hidden, self.num_attention_heads * head)
            if self.qk_norm:
                weights[f"{attention}.q_norm.weight"] = (head,)
                weights[f"{attention}.k_norm.weight"] = (head,)
            weights[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
            weights.update(self._ffn_shapes(f"{prefix}.mlp"))
        weights["model.norm.weight"] = (hidden,)
        if not self.tie_word_embeddings:
            weights["lm_head.weight"] = (self.vocab_size, hidden)
        return weights

    def _ffn_shapes(self, prefix: str) -> dict[str, tuple[int, ...]]:
        hidden = self.hidden_size
        if not self.is_moe:
            inner = self.intermediate_size
            return {
                f"{prefix}.gate_proj.weight": (inner, hidden),
                f"{prefix}.up_proj.weight": (inner, hidden),
                f"{prefix}.down_proj.weight": (hidden, inner),
            }
        experts, inner = self.num_experts, self.moe_intermediate_size
        return {
            f"{prefix}.gate.weight": (experts, hidden),
            f"{prefix}.experts.gate_proj": (experts, inner, hidden),
            f"{prefix}.experts.up_proj": (experts, inner, hidden),
            f"{prefix}.experts.down_proj": (experts, hidden, inner),
        }


# Behind name and type: hidden size, intermediate size, layers, heads, KV heads, head size, positions, base of
# the rotary frequencies, whether queries and keys are normed, whether embeddings are tied.
_LIST = (
    ModelShape("qwen3-0.6b", "qwen3", 1024, 3072, 28, 16, 8, 128, 40_960, 1e6, True, True),
    # No public model: Qwen3-0.6B, its rotary frequencies rescaled as Llama 3's for four times the positions.
    ModelShape(
        "qwen3-0.6b-128k", "qwen3", 1024, 3072, 28, 16, 8, 128, 131_072, 1e6, True, True,
        rope_scaling=RopeScaling(4.0, 1.0, 4.0, 32_768),
    ),
    ModelShape(
        "llama-3.1-8b", "llama", 4096, 14_336, 32, 32, 8, 128, 131_072, 5e5, False, False,
        rms_norm_eps=1e-5, rope_scaling=RopeScaling(8.0, 1.0, 4.0, 8192),
    ),
    ModelShape(
        "qwen3-30b-a3b", "qwen3_moe", 2048, 6144, 48, 32, 4, 128, 40_960, 1e6, True, False,
        num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768,
    ),
    # No public model: a mixture of experts small enough for a laptop, with Qwen3's attention.
    ModelShape(
        "qwen3-moe-64x8", "qwen3_moe", 1024, 3072, 8, 16, 8, 128, 40_960, 1e6, True, False,
        num_experts=64, num_experts_per_tok=8, moe_intermediate_size=384,
    ),
)  # fmt: skip

#: Shapes by name. All have a vocabulary of 32,000, whatever the public model's is: a larger one only
#: makes the LM head larger, which no verification method changes. `get_shape` overrides it.
SHAPES: dict[str, ModelShape] = {shape.name: shape for shape in _LIST}


def get_shape(name: str, layers: int | None = None, vocab_size: int | None = None) -> ModelShape:
    """Return a shape from `SHAPES`, with another depth or vocabulary where given.

    Raises:
        ValueError: there is no such shape, or a size is not positive.
    """
    if name not in SHAPES:
        raise ValueError(
            f"shape {name!r} is not known, expected one of {', '.join(SHAPES)}; choose one of these"
        )
    shape = SHAPES[name]
    if layers is not None:
        shape = replace(shape, num_hidden_layers=layers)
    return shape if vocab_size is None else replace(shape, vocab_size=vocab_size)
