"""An MTP module for the tiny target: a reference around the layers of transformers, trained for a moment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from drafters.eagle3_models import EPS, HEADS, HIDDEN, KV_HEADS, LAYERS, SIZE, THETA, VOCAB
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    Qwen3_5DecoderLayer,
    Qwen3_5RMSNorm,
    Qwen3_5TextConfig,
    Qwen3_5TextRotaryEmbedding,
)

# What the target's output layer reads.
BOUNDARY = LAYERS + 1
SIZES: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": SIZE,
    "rms_norm_eps": EPS,
    "max_position_embeddings": 2048,
    "vocab_size": VOCAB,
}
#: As the published ones of both kinds say it; a layer of Qwen3.5 rotates a part of each head and has a gate.
CONFIGS: dict[str, dict[str, Any]] = {
    "deepseek": {
        **SIZES,
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_nextn_predict_layers": 1,
        "rope_theta": THETA,
    },
    "qwen": {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": {
            **SIZES,
            "model_type": "qwen3_5_text",
            "mtp_num_hidden_layers": 1,
            "layer_types": ["linear_attention"] * (LAYERS - 1) + ["full_attention"],
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": THETA,
                "partial_rotary_factor": 0.5,
                "mrope_section": [2, 1, 1],
            },
        },
    },
}
_NAMES = {
    "deepseek": {
        "enorm": "enorm",
        "hnorm": "hnorm",
        "eh_proj": "eh_proj",
        "norm": "shared_head.norm",
        "layer": "",
    },
    "qwen": {
        "enorm": "pre_fc_norm_embedding",
        "hnorm": "pre_fc_norm_hidden",
        "eh_proj": "fc",
        "norm": "norm",
        "layer": "layers.0",
    },
}


class Reference(nn.Module):
    """A module by its definition: it reads the whole text again for every token, without a cache."""

    def __init__(self, kind: str, embedding: Tensor, output: Tensor) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind, self._shared = kind, (embedding, output)
        norm: Any
        if kind == "qwen":
            said = CONFIGS["qwen"]["text_config"]
            sizes = {name: said[name] for name in (*SIZES, "rope_parameters")}
            config = Qwen3_5TextConfig(**{**sizes, "num_hidden_layers": 1, "layer_types": ["full_attention"]})
            config._attn_implementation = "eager"
            self.layer, norm = Qwen3_5DecoderLayer(config, 0), Qwen3_5RMSNorm
            self._rotary = Qwen3_5TextRotaryEmbedding(config)
        else:
            parameters = {"rope_type": "default", "rope_theta": THETA}
            config = LlamaConfig(**{**SIZES, "num_hidden_layers": 1, "rope_parameters": parameters})
            config._attn_implementation = "eager"
            self.layer, norm = LlamaDecoderLayer(config, 0), LlamaRMSNorm
            self._rotary = LlamaRotaryEmbedding(config)
        self.enorm, self.hnorm, self.norm = norm(HIDDEN, EPS), norm(HIDDEN, EPS), norm(HIDDEN, EPS)
        self.eh_proj = nn.Linear(2 * HIDDEN, HIDDEN, bias=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 1:  # so that 1 + weight is not weight
                nn.init.normal_(weight, 0.0 if kind == "qwen" else 1.0, 0.1)
            else:
                nn.init.normal_(weight, 0.0, weight.shape[1] ** -0.5)
            assert weight.requires_grad, name

    def forward(self, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Own states and logits of entries: the target's states, each with the token after its position."""
        embedding, output = self._shared
        x = self.eh_proj(torch.cat([self.enorm(embedding[tokens]), self.hnorm(states)], -1))[None]
        rows = len(tokens)
        mask = torch.full((rows, rows), -torch.inf).triu(1)[None, None]
        positions = torch.arange(rows)[None]
        x = self.layer(
            x, position_embeddings=self._rotary(x, positions), attention_mask=mask, position_ids=positions
        )
        x = x if isinstance(x, Tensor) else x[0]
        hidden = self.norm(x)[0]
        return hidden, hidden @ output.T

    def draft(self, tokens: list[int], states: Tensor, count: int) -> list[int]:
        """The greedy draft after `tokens`, from the states `[tokens - 1, hidden]` before the last."""
        following, drafted = list(tokens[1:]), list[int]()
        with torch.no_grad():
            while len(drafted) < count:
                hidden, logits = self(states, torch.tensor(following))
                drafted.append(int(logits[-1].argmax()))
                states = torch.cat([states, hidden[-1:]])
                following.append(drafted[-1])
        return drafted

    def train_on(self, texts: list[tuple[list[int], Tensor]], steps: int) -> None:
        """Learn texts by heart, from the target's states and, one token further, from own ones."""
        optimizer = torch.optim.Adam(self.parameters(), 3e-3)
        for step in range(steps):
            tokens, states = texts[step % len(texts)]
            labels, following = torch.tensor(tokens[2:]), torch.tensor(tokens[1:-1])
            hidden, logits = self(states[:-2], following)
            shifted = torch.cat([states[:1], hidden[:-1]])
            loss = cross_entropy(logits, labels) + cross_entropy(self(shifted, following)[1], labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def save(self, folder: Path, more: dict[str, Tensor] | None = None, **config: Any) -> Path:
        """Write a checkpoint as it is published, with weights of the target in it."""
        prefix = "mtp" if self.kind == "qwen" else f"model.layers.{LAYERS}"
        names, (embedding, output) = _NAMES[self.kind], self._shared
        arrays = {"model.embed_tokens.weight": embedding.clone(), "lm_head.weight": output.clone()}
        for name, weight in self.state_dict().items():
            part, rest = name.split(".", 1)
            words = (prefix, names[part], rest)
            arrays[".".join(word for word in words if word)] = weight.detach().clone()
        if self.kind == "deepseek":
            arrays[f"{prefix}.embed_tokens.weight"] = embedding.clone()
            arrays[f"{prefix}.shared_head.head.weight"] = output.clone()
        folder.mkdir(parents=True, exist_ok=True)
        save_file({**arrays, **(more or {})}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({**CONFIGS[self.kind], **config}))
        return folder


def save_as_speculators(made: Reference, folder: Path) -> Path:
    """Write a module with the names and the settings of the package speculators."""
    names = {"enorm": "token_layernorm", "hnorm": "hidden_layernorm", "eh_proj": "input_proj"}
    names |= {"norm": "final_layernorm", "layer": ""}
    arrays = {}
    for name, weight in made.state_dict().items():
        part, rest = name.split(".", 1)
        words = ("mtp_layers.0", names[part], rest)
        arrays[".".join(word for word in words if word)] = weight.detach().clone()
    folder.mkdir(parents=True)
    save_file(arrays, folder / "model.safetensors")
    layers = {**SIZES, "num_hidden_layers": 1, "model_type": "qwen3", "rope_theta": THETA}
    said = {"speculators_model_type": "mtp", "architectures": ["MTPDraftModel"]}
    config = {**said, "num_nextn_predict_layers": 1, "transformer_layer_config": layers}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
