"""Target and draft of three families, as runners: the demo pair, and tiny models with random weights."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import openvino_genai
from prompts import PROMPTS, STORY
from settings import F32

from ovspec.model_runner import AttentionConfig, ModelRunner
from ovspec_models import demo_pair_path
from ovspec_models.shapes import ModelShape, get_shape
from ovspec_models.synthetic import build_model

_TINY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 61,
    "max_position_embeddings": 2048,
    "rope_scaling": None,
}
_SHAPES: dict[str, ModelShape] = {
    "llama": replace(get_shape("llama-3.1-8b"), **_TINY),
    "qwen3_moe": replace(
        get_shape("qwen3-30b-a3b"), **_TINY, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32
    ),
}
NAMES = ("demo", *_SHAPES)


@dataclass(frozen=True)
class Family:
    """Models of one family and prompts for them.

    Attributes:
        stock: the target with OpenVINO's own attention: what plain decoding is.
        target: the target whose graph selects blocks.
        draft: the draft model; it selects as well.
        vocab_size: of both.
        prompts: 50 prompts as token ids.
    """

    stock: ModelRunner
    target: ModelRunner
    draft: ModelRunner
    vocab_size: int
    prompts: list[list[int]]


@functools.cache
def family(name: str) -> Family:
    """A family, made once."""
    if name == "demo":
        folder = demo_pair_path()
        tokenizer = openvino_genai.Tokenizer(str(folder))
        texts = [STORY, *PROMPTS[:49]]
        prompts = [np.array(tokenizer.encode(text).input_ids.data).reshape(-1).tolist() for text in texts]
        stock, target, draft = (
            ModelRunner(path, "CPU", attention, F32)
            for path, attention in zip((folder, folder, folder / "draft"), _attentions(), strict=True)
        )
        return Family(stock, target, draft, 4096, prompts)
    shape = _SHAPES[name]
    stock, target, draft = (
        ModelRunner(build_model(shape, "fp32", seed=seed), "CPU", attention, F32)
        for seed, attention in zip((1, 1, 2), _attentions(), strict=True)
    )
    rng = np.random.default_rng(7)
    # Phrases that come again give the lookups something to find.
    phrases = rng.integers(0, shape.vocab_size, (8, 12))
    prompts = [phrases[rng.integers(0, 8, int(rng.integers(8, 16)))].reshape(-1).tolist() for _ in range(50)]
    return Family(stock, target, draft, shape.vocab_size, prompts)


def _attentions() -> tuple[AttentionConfig, AttentionConfig, AttentionConfig]:
    return AttentionConfig("stock"), AttentionConfig(selects=True), AttentionConfig(selects=True)
