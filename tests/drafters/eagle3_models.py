"""A tiny target, and an EAGLE-3 head for it: a reference in torch, trained for a moment, and exported."""

from __future__ import annotations

import functools
import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
import torch
from safetensors.torch import save_file
from synthetic.cases import load_into, transformers_model, weight_arrays
from tiny_checkpoints import Tiny, random_model, save_checkpoint
from torch.nn.functional import cross_entropy, rms_norm, scaled_dot_product_attention, silu

from ovspec_models import ModelInfo, export_model
from ovspec_models.heads import export_head, open_head
from ovspec_models.shapes import ModelShape, get_shape
from ovspec_models.synthetic import build_model

VOCAB, DRAFTED, LAYERS, HIDDEN = 61, 48, 7, 64
HEADS, KV_HEADS, SIZE, EPS, THETA = 4, 2, 16, 1e-6, 1e4
_TINY: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": SIZE,
    "vocab_size": VOCAB,
    "max_position_embeddings": 2048,
    "rope_scaling": None,
}
SHAPES: dict[str, ModelShape] = {
    "llama": replace(get_shape("llama-3.1-8b"), **_TINY),
    "qwen3": replace(get_shape("qwen3-0.6b"), **_TINY),
    "qwen3_moe": replace(
        get_shape("qwen3-30b-a3b"), **_TINY, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32
    ),
}
#: A target some of whose layers have linear attention.
HYBRID = "qwen3_5"
#: Of the paper: a low, a middle and a high state; states before layers 2, N / 2 and N - 3.
BOUNDARIES = (2, LAYERS // 2, LAYERS - 3)
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": SIZE,
    "max_position_embeddings": 2048,
    "rms_norm_eps": EPS,
    "rope_theta": THETA,
    "vocab_size": VOCAB,
    "draft_vocab_size": DRAFTED,
}


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention `[rows, heads * size]` of `[heads, rows, size]`, with rotary positions."""
    angles = torch.outer(torch.arange(q.shape[1]), THETA ** (-torch.arange(0, SIZE, 2) / SIZE))
    cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()

    def rotated(x: torch.Tensor) -> torch.Tensor:
        low, high = x.chunk(2, -1)
        return x * cos + torch.cat([-high, low], -1) * sin

    k, v = (x.repeat_interleave(HEADS // KV_HEADS, 0) for x in (rotated(k), v))
    mixed = scaled_dot_product_attention(rotated(q), k, v, is_causal=True)
    return mixed.transpose(0, 1).flatten(1)


FC_NORMS = tuple(f"fc_norm.{place}.weight" for place in range(3))


class Reference:
    """A head by the paper's definition: it reads the whole text again for every token, without a cache.

    Args:
        embedding: of the target, f32 `[vocab, hidden]`.
        output: weight of the target's output layer, for a head that has none of its own.
    """

    def __init__(self, embedding: torch.Tensor, seed: int = 0, output: torch.Tensor | None = None) -> None:
        torch.manual_seed(seed)
        self.embedding, self.output = embedding, output

        def matrix(rows: int, columns: int) -> torch.Tensor:
            return (torch.randn(rows, columns) / columns**0.5).requires_grad_()

        def ones() -> torch.Tensor:
            return torch.ones(HIDDEN).requires_grad_()

        self.weights = {
            "fc.weight": matrix(HIDDEN, 3 * HIDDEN),
            "midlayer.hidden_norm.weight": ones(),
            "midlayer.input_layernorm.weight": ones(),
            "midlayer.self_attn.q_proj.weight": matrix(HEADS * SIZE, 2 * HIDDEN),
            "midlayer.self_attn.k_proj.weight": matrix(KV_HEADS * SIZE, 2 * HIDDEN),
            "midlayer.self_attn.v_proj.weight": matrix(KV_HEADS * SIZE, 2 * HIDDEN),
            "midlayer.self_attn.o_proj.weight": matrix(HIDDEN, HEADS * SIZE),
            "midlayer.post_attention_layernorm.weight": ones(),
            "midlayer.mlp.gate_proj.weight": matrix(96, HIDDEN),
            "midlayer.mlp.up_proj.weight": matrix(96, HIDDEN),
            "midlayer.mlp.down_proj.weight": matrix(HIDDEN, 96),
            "norm.weight": ones(),
            "lm_head.weight": matrix(DRAFTED, HIDDEN),
        }
        # Every fifth token but the first ones is left out.
        self.ids = torch.tensor([token for token in range(VOCAB) if token < 5 or token % 5])[:DRAFTED]
        if output is not None:
            del self.weights["lm_head.weight"]
            self.ids = torch.arange(VOCAB)

    def features(self, states: torch.Tensor) -> torch.Tensor:
        """Features `[tokens, hidden]` of states `[tokens, 3 * hidden]`, behind norms where it has them."""
        norms = [self.weights[name] for name in FC_NORMS if name in self.weights]
        if norms:
            parts = zip(states.chunk(3, -1), norms, strict=True)
            states = torch.cat([rms_norm(part, (HIDDEN,), weight, EPS) for part, weight in parts], -1)
        return states @ self.weights["fc.weight"].T

    def forward(self, features: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Own states and logits of entries: features, each with the token after its position."""
        w = {name.removeprefix("midlayer."): weight for name, weight in self.weights.items()}

        def norm(x: torch.Tensor, name: str) -> torch.Tensor:
            return rms_norm(x, (HIDDEN,), w[f"{name}.weight"], EPS)

        both = torch.cat([norm(self.embedding[tokens], "input_layernorm"), norm(features, "hidden_norm")], -1)
        q, k, v = (
            (both @ w[f"self_attn.{part}_proj.weight"].T).view(len(both), -1, SIZE).transpose(0, 1)
            for part in "qkv"
        )
        hidden = features + attended(q, k, v) @ w["self_attn.o_proj.weight"].T
        inner = norm(hidden, "post_attention_layernorm")
        gated = silu(inner @ w["mlp.gate_proj.weight"].T) * (inner @ w["mlp.up_proj.weight"].T)
        hidden = hidden + gated @ w["mlp.down_proj.weight"].T
        return hidden, norm(hidden, "norm") @ w.get("lm_head.weight", self.output).T

    def draft(self, tokens: list[int], states: torch.Tensor, count: int) -> list[int]:
        """The greedy draft after `tokens`, from the states `[tokens - 1, 3 * hidden]` before the last."""
        features, following, drafted = self.features(states), list(tokens[1:]), list[int]()
        with torch.no_grad():
            while len(drafted) < count:
                hidden, logits = self.forward(features, torch.tensor(following))
                drafted.append(int(self.ids[logits[-1].argmax()]))
                features = torch.cat([features, hidden[-1:]])
                following.append(drafted[-1])
        return drafted

    def train(self, texts: list[tuple[list[int], torch.Tensor]], steps: int) -> None:
        """Learn the texts by heart, from the target's states and, one token further, from own ones."""
        optimizer = torch.optim.Adam(self.weights.values(), 3e-3)
        places = {int(token): place for place, token in enumerate(self.ids)}
        for step in range(steps):
            tokens, states = texts[step % len(texts)]
            labels = torch.tensor([places.get(token, -100) for token in tokens])
            features = self.features(states[: len(tokens) - 2])
            following = torch.tensor(tokens[1:-1])
            hidden, logits = self.forward(features, following)
            loss = cross_entropy(logits, labels[2:])
            shifted = torch.cat([features[:1], hidden[:-1]])
            loss = loss + cross_entropy(self.forward(shifted, following)[1], labels[2:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def save(self, folder: Path, **config: Any) -> Path:
        """Write a checkpoint as it is published."""
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {name: weight.detach().clone() for name, weight in self.weights.items()}
        if self.output is None:
            arrays["d2t"] = self.ids - torch.arange(DRAFTED)
            arrays["t2d"] = torch.isin(torch.arange(VOCAB), self.ids)
        save_file(arrays, folder / "model.safetensors")
        (folder / "config.json").write_text(
            json.dumps({**CONFIG, "draft_vocab_size": len(self.ids), **config})
        )
        return folder


@dataclass(frozen=True)
class Pair:
    """A target and a head.

    Attributes:
        folder: of the target, with the exported head in `draft`, its checkpoint in `checkpoint`.
        model: the target in transformers.
        reference: the head.
        prompts: token ids.
    """

    folder: Path
    model: Any
    reference: Reference
    prompts: list[list[int]]

    @property
    def info(self) -> ModelInfo:
        return ModelInfo.read(self.folder)

    def states(self, tokens: list[int], boundaries: tuple[int, ...] = BOUNDARIES) -> torch.Tensor:
        """What the target's layers read at the boundaries, `[tokens, 3 * hidden]`."""
        found = _hidden_states(self.model, tuple(tokens))
        return torch.cat([found[boundary][0] for boundary in boundaries], -1)

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """The prompt with the target's answer."""
        return [*prompt, *_greedy(self.model, tuple(prompt), count)]


@functools.lru_cache(256)
def _hidden_states(model: Any, tokens: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        passed = model(torch.tensor([tokens]), output_hidden_states=True)
    return tuple(passed.hidden_states)


@functools.lru_cache(64)
def _greedy(model: Any, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tuple(tokens[len(prompt) :])


def pair(name: str = "llama", steps: int = 150) -> Pair:
    """A target with a head that has learnt a part of its answers.

    Args:
        name: of `SHAPES`, or `HYBRID`.
        steps: of the head's training.
    """
    return _pair(name, steps)  # one, whether defaults are given or not


@functools.cache
def _pair(name: str, steps: int) -> Pair:
    folder, model = _hybrid() if name == HYBRID else _synthetic(SHAPES[name])
    rng = np.random.default_rng(3)
    prompts = [rng.integers(0, VOCAB, length).tolist() for length in (40, 7, 70, 33)]
    reference = Reference(model.get_input_embeddings().weight.detach().clone())
    made = Pair(folder, model, reference, prompts)
    texts = [made.greedy(prompt, 40) for prompt in prompts]
    reference.train([(text, made.states(text)) for text in texts], steps)
    checkpoint = open_head(reference.save(folder / "checkpoint"), "eagle3")
    export_head(checkpoint, made.info, folder / "draft", "fp32")
    return made


def _synthetic(shape: ModelShape) -> tuple[Path, Any]:
    """A folder with random weights, and the same model in transformers."""
    folder = Path(tempfile.mkdtemp())
    graph = build_model(shape, "fp32", seed=1)
    ov.save_model(graph, folder / "openvino_model.xml", compress_to_fp16=False)
    fields = {
        key: getattr(shape, key) for key in (*_TINY, "model_type", "num_experts", "moe_intermediate_size")
    }
    config = {**fields, "rope_theta": shape.rope_theta, "num_experts_per_tok": shape.num_experts_per_tok}
    (folder / "config.json").write_text(json.dumps(config))
    return folder, load_into(transformers_model(shape), weight_arrays(graph, shape))


def _hybrid() -> tuple[Path, Any]:
    """The same of Qwen3.5: three of its layers have linear attention."""
    pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")
    linear = {"linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2}
    types = [*["linear_attention", "full_attention", "full_attention"] * 2, "linear_attention"]
    sizes = {**_TINY, **linear, "linear_num_value_heads": 4, "layer_types": types, "initializer_range": 0.2}
    tiny = Tiny("Qwen3_5TextConfig", {**sizes, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1})
    folder = Path(tempfile.mkdtemp())
    model = random_model(tiny)
    with torch.no_grad():  # else the last norm changes nothing that a norm behind it does not
        model.model.norm.weight.normal_(0.0, 0.3)
    checkpoint = save_checkpoint(model, folder / "target")
    return export_model(checkpoint, folder / "ir", weight_format="fp32"), model
