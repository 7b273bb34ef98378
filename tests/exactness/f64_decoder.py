"""The synthetic decoders in f64 with NumPy: what logits are without any rounding."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ovspec_models.shapes import ModelShape

F64 = NDArray[np.float64]
_EXPERT = ("gate_proj", "up_proj", "down_proj")


def logits(shape: ModelShape, weights: Mapping[str, NDArray[np.float32]], tokens: NDArray[np.int64]) -> F64:
    """Logits f64 `[tokens, vocab]` of a text.

    Args:
        shape: of the decoder.
        weights: decompressed, by their names in a checkpoint.
        tokens: i64 `[tokens]`.
    """
    w = {name: values.astype(np.float64) for name, values in weights.items()}
    x = w["model.embed_tokens.weight"][tokens]
    turns = _turns(shape, len(tokens))
    for layer in range(shape.num_hidden_layers):
        own = {
            name.removeprefix(prefix): values
            for prefix in [f"model.layers.{layer}."]
            for name, values in w.items()
            if name.startswith(prefix)
        }
        x = x + _attention(shape, own, _norm(shape, x, own["input_layernorm.weight"]), turns)
        h = _norm(shape, x, own["post_attention_layernorm.weight"])
        x = x + (_experts(shape, own, h) if shape.is_moe else _mlp(h, own, "mlp."))
    head = "model.embed_tokens.weight" if shape.tie_word_embeddings else "lm_head.weight"
    return _norm(shape, x, w["model.norm.weight"]) @ w[head].T


def _norm(shape: ModelShape, x: F64, gain: F64) -> F64:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + shape.rms_norm_eps) * gain


def _turns(shape: ModelShape, length: int) -> tuple[F64, F64]:
    """Cosines and sines `[tokens, head_dim / 2]`; the frequencies are constants of f32 in the graph."""
    half = np.arange(0, shape.head_dim, 2, dtype=np.float64) / shape.head_dim
    frequencies = shape.rope_theta**-half
    if shape.rope_scaling is not None:
        scaling, span = shape.rope_scaling, 2 * np.pi / frequencies
        turns = scaling.original_max_position_embeddings / span
        smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
        smooth = np.clip(smooth, 0.0, 1.0)
        frequencies = frequencies * (smooth + (1.0 - smooth) / scaling.factor)
    angles = np.arange(length)[:, None] * frequencies.astype(np.float32).astype(np.float64)
    return np.cos(angles), np.sin(angles)


def _turned(x: F64, turns: tuple[F64, F64]) -> F64:
    """Rotary positions of heads `[tokens, heads, head_dim]`."""
    cos, sin = (part[:, None, :] for part in turns)
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def _attention(shape: ModelShape, w: Mapping[str, F64], x: F64, turns: tuple[F64, F64]) -> F64:
    def heads(name: str, count: int) -> F64:
        found = (x @ w[f"self_attn.{name}_proj.weight"].T).reshape(len(x), count, shape.head_dim)
        gain = w.get(f"self_attn.{name}_norm.weight")
        return found if gain is None else _norm(shape, found, gain)

    groups = shape.num_attention_heads // shape.num_key_value_heads
    q = _turned(heads("q", shape.num_attention_heads), turns)
    k = np.repeat(_turned(heads("k", shape.num_key_value_heads), turns), groups, axis=1)
    v = np.repeat(heads("v", shape.num_key_value_heads), groups, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(shape.head_dim)
    scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", shares, v).reshape(len(x), -1) @ w["self_attn.o_proj.weight"].T


def _mlp(x: F64, w: Mapping[str, F64], prefix: str) -> F64:
    gate, up, down = (w[f"{prefix}{name}_proj.weight"] for name in ("gate", "up", "down"))
    gated = x @ gate.T
    return (gated / (1.0 + np.exp(-gated)) * (x @ up.T)) @ down.T


def _experts(shape: ModelShape, w: Mapping[str, F64], x: F64) -> F64:
    routed = x @ w["mlp.gate.weight"].T
    shares = np.exp(routed - routed.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    out = np.zeros_like(x)
    for row, share in enumerate(shares):
        chosen = np.argsort(-share, kind="stable")[: shape.num_experts_per_tok]
        for expert in chosen:
            own = {f"{name}.weight": w[f"mlp.experts.{name}"][expert] for name in _EXPERT}
            out[row] += share[expert] / share[chosen].sum() * _mlp(x[row : row + 1], own, "")[0]
    return out
