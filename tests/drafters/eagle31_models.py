"""EAGLE-3 heads with the norms, layers and biases of later checkpoints: a reference by their definitions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

import torch
from drafters.eagle3_models import EPS, HIDDEN, SIZE, VOCAB, Reference, attended
from torch.nn.functional import cross_entropy, linear, rms_norm, silu

#: What a head may have beside the paper's; each changes every logit, or those behind a drafted token.
VARIANTS: dict[str, dict[str, Any]] = {
    "norm_before_residual": {"norm_before_residual": True},
    "norm_before_fc": {"norm_before_fc": True},
    "fc_norm": {"fc_norm": True},
    "norm_output": {"norm_output": True},
    "two layers": {"num_hidden_layers": 2},
    "norms of queries and keys": {"model_type": "qwen3"},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "all": {
        **dict.fromkeys(
            ("norm_before_residual", "fc_norm", "norm_output", "attention_bias", "mlp_bias"), True
        ),
        "model_type": "qwen3",
        "num_hidden_layers": 3,
    },
}


class Reference31(Reference):
    """A head by its config.json, with random weights; further arguments as of `Reference`.

    Args:
        config: of `VARIANTS`.
    """

    def __init__(self, embedding: torch.Tensor, seed: int = 0, **config: Any) -> None:
        super().__init__(embedding, seed)
        self.config = {"eagle_aux_hidden_state_layer_ids": [2, 3, 4], **config}
        first = {name.replace("midlayer", "layers.0"): weight for name, weight in self.weights.items()}
        self.weights = dict(first)
        for layer in range(1, self.layers):
            for name, weight in first.items():
                if name.startswith("layers.0.") and "hidden_norm" not in name:
                    columns = HIDDEN if name.split(".")[-2] in ("q_proj", "k_proj", "v_proj") else None
                    part = weight.detach()[..., :columns] if columns else weight.detach()
                    self._add(name.replace("layers.0", f"layers.{layer}"), part.shape, part.std() or 0.0)
        for name, weight in list(self.weights.items()):
            group = "attention_bias" if "self_attn" in name else "mlp_bias"
            if "_proj" in name and config.get(group):
                self._add(name.replace(".weight", ".bias"), weight.shape[:1], 0.5)
        if config.get("model_type") == "qwen3":
            for layer in range(self.layers):
                for part in "qk":
                    self._add(f"layers.{layer}.self_attn.{part}_norm.weight", (SIZE,), 0.2)
        if config.get("norm_before_fc"):
            self._add("input_norm.weight", (3 * HIDDEN,), 0.2)
        if config.get("fc_norm"):
            for place in range(3):
                self._add(f"fc_norm.{place}.weight", (HIDDEN,), 0.2)
        for name, weight in self.weights.items():  # a factor of one would hide a norm that is left out
            if "norm" in name:
                self.weights[name] = (1 + 0.3 * torch.randn(weight.shape)).requires_grad_()

    @property
    def layers(self) -> int:
        return int(self.config.get("num_hidden_layers", 1))

    def _add(self, name: str, shape: Any, deviation: Any) -> None:
        self.weights[name] = (torch.randn(tuple(shape)) * deviation).requires_grad_()

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return rms_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], EPS)

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def features(self, states: torch.Tensor) -> torch.Tensor:
        if self.config.get("norm_before_fc"):
            states = self._norm(states, "input_norm")
        if self.config.get("fc_norm"):
            parts = states.chunk(3, -1)
            states = torch.cat([self._norm(part, f"fc_norm.{i}") for i, part in enumerate(parts)], -1)
        return self._linear(states, "fc")

    def forward(self, features: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = features
        for layer in range(self.layers):
            name = f"layers.{layer}"
            if layer:
                read = self._norm(hidden, f"{name}.input_layernorm")
            else:
                normed = self._norm(features, f"{name}.hidden_norm")
                read = torch.cat([self._norm(self.embedding[tokens], f"{name}.input_layernorm"), normed], -1)
                hidden = normed if self.config.get("norm_before_residual") else features
            hidden = hidden + self._attention(read, f"{name}.self_attn")
            inner = self._norm(hidden, f"{name}.post_attention_layernorm")
            gated = silu(self._linear(inner, f"{name}.mlp.gate_proj")) * self._linear(
                inner, f"{name}.mlp.up_proj"
            )
            hidden = hidden + self._linear(gated, f"{name}.mlp.down_proj")
        normed = self._norm(hidden, "norm")
        return normed if self.config.get("norm_output") else hidden, self._linear(normed, "lm_head")

    def _attention(self, rows: torch.Tensor, name: str) -> torch.Tensor:
        q, k, v = (
            self._linear(rows, f"{name}.{part}_proj").view(len(rows), -1, SIZE).transpose(0, 1)
            for part in "qkv"
        )
        if f"{name}.q_norm.weight" in self.weights:
            q, k = self._norm(q, f"{name}.q_norm"), self._norm(k, f"{name}.k_norm")
        return self._linear(attended(q, k, v), f"{name}.o_proj")

    def save(self, folder: Path, **config: Any) -> Path:
        return super().save(folder, **{**self.config, **config})


class ParallelReference(Reference31):
    """P-EAGLE: the same layers over masks behind the text give all tokens of a draft at once."""

    mask, depth = VOCAB - 1, 5
    #: What a config.json says that vLLM reads in place of the package speculators.
    of_vllm: ClassVar[dict[str, Any]] = {
        **dict.fromkeys(("speculators_model_type", "speculators_config", "mask_token_id")),
        "architectures": ["LlamaForCausalLMEagle3"],
        "ptd_token_id": mask,
    }

    def __init__(self, embedding: torch.Tensor, seed: int = 0, **config: Any) -> None:
        methods = [{"proposal_type": "greedy", "speculative_tokens": self.depth}]
        said = {
            "speculators_model_type": "peagle",
            "architectures": ["PEagleSpeculator"],
            "norm_before_residual": False,
            "mask_token_id": self.mask,
            "speculators_config": {"algorithm": "peagle", "proposal_methods": methods},
        }
        super().__init__(embedding, seed, **{**said, **config})
        named = "ptd_token_id" in config
        self._add("mask_hidden", (1, 3 * HIDDEN) if named else (1, 1, 3 * HIDDEN), 1.0)
        # vLLM is told how many tokens to draft.
        self.most = sys.maxsize if named else self.depth

    def logits(self, tokens: list[int], states: torch.Tensor, count: int) -> torch.Tensor:
        """Of the next `count` tokens, over those of the head, from the states `[tokens - 1, states]`."""
        masks = self.weights["mask_hidden"].reshape(1, -1).expand(count - 1, -1)
        following = torch.tensor([*tokens[1:], *[self.mask] * (count - 1)])
        return self.forward(self.features(torch.cat([states, masks])), following)[1][-count:]

    def draft(self, tokens: list[int], states: torch.Tensor, count: int) -> list[int]:
        with torch.no_grad():
            found: list[int] = self.ids[
                self.logits(tokens, states, min(count, self.most)).argmax(-1)
            ].tolist()
        return found

    def train(self, texts: list[tuple[list[int], torch.Tensor]], steps: int) -> None:
        """Learn the texts by heart, from a few places of each."""
        optimizer = torch.optim.Adam(self.weights.values(), 3e-3)
        places = {int(token): place for place, token in enumerate(self.ids)}
        for step in range(steps):
            tokens, states = texts[step % len(texts)]
            loss = torch.zeros(())
            for begin in torch.randint(max(2, len(tokens) - 42), len(tokens) - self.depth, (4,)).tolist():
                labels = [places.get(token, -100) for token in tokens[begin : begin + self.depth]]
                if any(label >= 0 for label in labels):
                    logits = self.logits(tokens[:begin], states[: begin - 1], self.depth)
                    loss = loss + cross_entropy(logits, torch.tensor(labels))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
