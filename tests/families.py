"""Target and draft of several families, as runners: the demo pair (Qwen3), and tiny random models."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai
from prompts import PROMPTS, STORY
from settings import F32

from ovspec.operations.attention_config import AttentionConfig
from ovspec.operations.backends import Backends
from ovspec.runner.model_runner import ModelRunner
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
# Differs from Qwen3 and Llama in layer norms, biases and an ungated feed-forward layer with GELU.
_STARCODER2: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 61,
    "max_position_embeddings": 2048,
    "sliding_window": None,
    "use_bias": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
NAMES = ("demo", "llama", "starcoder2")
EVERY_NAME = (*NAMES, "qwen3_moe")


@dataclass(frozen=True)
class Family:
    """Models of one family and prompts for them.

    Attributes:
        stock: the target with OpenVINO's own attention: what plain decoding is.
        target: the target whose graph selects blocks and can leave layers out.
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
        stock, target, draft = map(
            _runner, (folder, folder, folder / "draft"), _attentions(), (False, True, False)
        )
        return Family(stock, target, draft, 4096, prompts)
    make = functools.cache(_starcoder2 if name == "starcoder2" else _synthetic(_SHAPES[name]))
    stock, target, draft = map(
        _runner, (make(seed).clone() for seed in (1, 1, 2)), _attentions(), (False, True, False)
    )
    rng = np.random.default_rng(7)
    # Phrases that come again give the lookups something to find.
    phrases = rng.integers(0, 61, (8, 12))
    prompts = [phrases[rng.integers(0, 8, int(rng.integers(8, 16)))].reshape(-1).tolist() for _ in range(50)]
    return Family(stock, target, draft, 61, prompts)


def _synthetic(shape: ModelShape) -> Callable[[int], ov.Model]:
    return lambda seed: build_model(shape, "fp32", seed=seed)


def _starcoder2(seed: int) -> ov.Model:
    """A checkpoint with random weights, through the exporter."""
    import torch
    from optimum.intel import OVModelForCausalLM
    from transformers import Starcoder2Config, Starcoder2ForCausalLM

    torch.manual_seed(seed)
    model = Starcoder2ForCausalLM(Starcoder2Config(**_STARCODER2))
    for weight in model.parameters():
        if weight.dim() > 1:  # at their default of 0.02 every context gives the same text
            torch.nn.init.normal_(weight, std=0.15)
    with tempfile.TemporaryDirectory() as folder:
        model.float().save_pretrained(folder)
        exported = OVModelForCausalLM.from_pretrained(folder, export=True, compile=False, load_in_8bit=False)
        exported.save_pretrained(Path(folder) / "ir")
        return ov.Core().read_model(Path(folder) / "ir" / "openvino_model.xml").clone()


def _attentions() -> tuple[AttentionConfig, AttentionConfig, AttentionConfig]:
    return AttentionConfig("stock"), AttentionConfig(selects=True), AttentionConfig(selects=True)


def _runner(model: str | Path | ov.Model, attention: AttentionConfig, skips_layers: bool) -> ModelRunner:
    backends = Backends.resolve(model, "CPU", F32, attention, skips_layers=skips_layers)
    return ModelRunner(model, backends=backends)
