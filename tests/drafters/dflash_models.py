"""A DFlash head for the tiny target: a reference in torch, trained for a moment."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from drafters.correction_models import FORMS, Convolution
from drafters.eagle3_models import EPS, HEADS, HIDDEN, KV_HEADS, LAYERS, SIZE, THETA, VOCAB
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu

from ovspec_models.folder.head_info import FORMAT

# Published numbers mean the output of a layer, and so the boundary after it.
IDS = (1, 4)
BOUNDARIES = (2, 5)
BLOCK, MASK, OWN_LAYERS, INNER = 6, VOCAB - 1, 2, 96
CONFIG: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "block_size": BLOCK,
    "dflash_config": {"mask_token_id": MASK, "target_layer_ids": list(IDS)},
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "layer_types": ["full_attention"] * OWN_LAYERS,
    "max_position_embeddings": 2048,
    "num_attention_heads": HEADS,
    "num_hidden_layers": OWN_LAYERS,
    "num_key_value_heads": KV_HEADS,
    "num_target_layers": LAYERS,
    "head_dim": SIZE,
    "rms_norm_eps": EPS,
    "rope_theta": THETA,
    "vocab_size": VOCAB,
}


def dspark_settings(form: str, rank: int) -> dict[str, Any]:
    """Settings of a DSpark head as DeepSpec publishes it (`top`), and as SpecForge does (`nested`)."""
    places = {"mask_token_id": MASK, "target_layer_ids": list(IDS)}
    own = {"markov_rank": rank, "markov_head_type": "vanilla"}
    own |= {"enable_confidence_head": False, "confidence_head_with_markov": True}
    none = dict.fromkeys(("sample_from_anchor", "dflash_config", *own))
    if form == "top":
        more = {"dflash_query_causal": False, "log_snr_conditioning": False}
        return {**none, **places, **own, **more, "architectures": ["Qwen3DSparkModel"]}
    nested = {**places, **own, "projector_type": "dspark", "confidence_head_alpha": 1.0}
    return {**none, "dflash_config": nested, "architectures": ["DSparkDraftModel"]}


class Reference(nn.Module):
    """A head by the paper's definition, without a cache. Its parameters have the names of checkpoints.

    Args:
        embedding, output: weights of the target's layers.
        own: whether it drafts every other token only, with an output layer of its own.
        anchor: whether the first token of a block drafts too, and each the one behind it.
        form: one of `correction_models.FORMS`, if tokens drafted before change the logits.
        windows: how many tokens before a block each layer sees, 0 for all; as `speculators` has it.
        non_causal: whether the rows of a block see each other in layers with a window too.
    """

    def __init__(
        self,
        embedding: Tensor,
        output: Tensor,
        seed: int = 0,
        own: bool = False,
        anchor: bool = False,
        form: str = "",
        windows: tuple[int, ...] = (),
        non_causal: bool = False,
    ) -> None:
        super().__init__()
        self.windows, self.non_causal = windows or (0,) * OWN_LAYERS, non_causal
        self.anchor, self.ids = anchor, torch.arange(0, VOCAB, 2 if own else 1)
        torch.manual_seed(seed)
        self.fc = nn.Linear(len(IDS) * HIDDEN, HIDDEN, bias=False)
        self.hidden_norm = nn.RMSNorm(HIDDEN, EPS)
        self.layers = nn.ModuleList(
            [Layer(form == "dflash2", window, window > 0 and not non_causal) for window in self.windows]
        )
        self.norm = nn.RMSNorm(HIDDEN, EPS)
        self._shared = embedding, output
        if own:
            self.lm_head = nn.Linear(HIDDEN, len(self.ids), bias=False)
            self.register_buffer("d2t", self.ids - torch.arange(len(self.ids)))
            self.register_buffer("t2d", torch.isin(torch.arange(VOCAB), self.ids))
        self.correction, self.said = "", dict[str, Any]()
        if form:
            self.correction, made, self.said = FORMS[form]
            self.add_module(self.correction, made(len(self.ids), BLOCK))
        if any(windows):
            self.said = {
                **self.said,
                FORMAT: form.split(",")[0] or "dflash",
                **self._window(),
            }

    def _window(self) -> dict[str, Any]:
        kinds = ["sliding_attention" if window else "full_attention" for window in self.windows]
        found = {"layer_types": kinds, "use_sliding_window": True, "sliding_window": max(self.windows)}
        return {**found, "sliding_window_non_causal": self.non_causal}

    def forward(self, inputs_embeds: Tensor, hidden_states: Tensor, position_ids: Tensor) -> Tensor:
        """What the output layer reads for a block.

        Args:
            inputs_embeds: of the block's tokens, `[1, block, hidden]`.
            hidden_states: of the target, `[1, context, states]`.
            position_ids: of both, the context first, `[1, context + block]`.
        """
        context = self.hidden_norm(self.fc(hidden_states))
        hidden = inputs_embeds
        for layer in self.layers:
            hidden = layer(hidden, context, position_ids)
        return self.norm(hidden)

    def block(self, tokens: list[int], states: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """What the output layer reads and gives at the places of a block that drafts so many tokens."""
        embedding, output = self._shared
        if self.correction and self.get_submodule(self.correction).whole:
            count = BLOCK - 1 + self.anchor
        block = torch.tensor([tokens[-1]] + [MASK] * (count - self.anchor))
        positions = torch.arange(len(states) + len(block))
        hidden = self(embedding[block][None], states[None], positions[None])[0]
        return hidden, hidden @ (self.lm_head.weight if hasattr(self, "lm_head") else output).T

    def logits(
        self, tokens: list[int], states: Tensor, count: int, drafted: list[int] | None = None
    ) -> Tensor:
        """Of the next `count` tokens, over those of the head, from the states `[tokens - 1, states]`.

        Args:
            drafted: the tokens behind `tokens`, where a correction reads them.
        """
        hidden, found = self.block(tokens, states, count)
        first = 0 if self.anchor else 1
        if self.correction:
            module, drafted = self.get_submodule(self.correction), drafted or []
            before = [tokens[-1], *drafted] if self.anchor else [tokens[-module.leads], tokens[-1], *drafted]
            before += [MASK] * (len(hidden) - len(before))  # of places behind those that are asked for
            found = module(torch.tensor(before[: len(hidden)]), hidden, found)
        return found[first : first + count]

    def draft(self, tokens: list[int], states: Tensor, count: int) -> list[int]:
        """The greedy draft after `tokens`."""
        count, drafted = min(count, BLOCK - 1 + self.anchor), list[int]()
        with torch.no_grad():
            if not self.correction:
                found: list[int] = self.ids[self.logits(tokens, states, count).argmax(-1)].tolist()
                return found
            for place in range(count):
                logits = self.logits(tokens, states, count, drafted)[place]
                drafted.append(int(self.ids[logits.argmax()]))
        return drafted

    def train_on(self, texts: list[tuple[list[int], Tensor]], steps: int) -> None:
        """Learn blocks of texts by heart."""
        optimizer = torch.optim.Adam(self.parameters(), 3e-3)
        places = {int(token): place for place, token in enumerate(self.ids)}
        for step in range(steps):
            tokens, states = texts[step % len(texts)]
            loss = torch.zeros(())
            for begin in torch.randint(len(tokens) - 42, len(tokens) - BLOCK, (4,)).tolist():
                begin = max(2, begin)
                drafted = tokens[begin : begin + BLOCK - 2]
                logits = self.logits(tokens[:begin], states[: begin - 1], BLOCK - 1, drafted)
                labels = [places.get(token, -100) for token in tokens[begin : begin + BLOCK - 1]]
                if any(label >= 0 for label in labels):
                    loss = loss + cross_entropy(logits, torch.tensor(labels))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        self.eval()

    def save(self, folder: Path, **config: Any) -> Path:
        """Write a checkpoint as it is published."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: w.detach().clone() for name, w in self.state_dict().items()}, folder / "model.safetensors"
        )
        own = {"draft_vocab_size": len(self.ids)} if hasattr(self, "lm_head") else {}
        anchor = {"sample_from_anchor": self.anchor} if self.anchor or self.correction else {}
        (folder / "config.json").write_text(json.dumps({**CONFIG, **own, **anchor, **self.said, **config}))
        return folder


class Layer(nn.Module):
    def __init__(self, convolves: bool = False, window: int = 0, causal: bool = False) -> None:
        super().__init__()
        self.window, self.causal = window, causal
        if convolves:
            self.attention_conv, self.mlp_conv = Convolution(), Convolution()
        self.input_layernorm = nn.RMSNorm(HIDDEN, EPS)
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": nn.Linear(HIDDEN, HEADS * SIZE, bias=False),
                "k_proj": nn.Linear(HIDDEN, KV_HEADS * SIZE, bias=False),
                "v_proj": nn.Linear(HIDDEN, KV_HEADS * SIZE, bias=False),
                "o_proj": nn.Linear(HEADS * SIZE, HIDDEN, bias=False),
                "q_norm": nn.RMSNorm(SIZE, EPS),
                "k_norm": nn.RMSNorm(SIZE, EPS),
            }
        )
        self.post_attention_layernorm = nn.RMSNorm(HIDDEN, EPS)
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(HIDDEN, INNER, bias=False),
                "up_proj": nn.Linear(HIDDEN, INNER, bias=False),
                "down_proj": nn.Linear(INNER, HIDDEN, bias=False),
            }
        )

    def forward(self, hidden: Tensor, context: Tensor, positions: Tensor) -> Tensor:
        """The block's rows see the context, or its last tokens, and the block, or what is before them."""
        mlp = self.mlp

        def ffn(rows: Tensor) -> Tensor:
            return mlp["down_proj"](silu(mlp["gate_proj"](rows)) * mlp["up_proj"](rows))

        hidden = hidden + self._convolved(
            "attention_conv",
            self.input_layernorm(hidden),
            lambda rows: self._attention(rows, context, positions),
        )
        return hidden + self._convolved("mlp_conv", self.post_attention_layernorm(hidden), ffn)

    def _convolved(self, name: str, rows: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        if not hasattr(self, name):
            return compute(rows)
        part = getattr(self, name)
        before, behind = part.kernels(rows[0])
        found: Tensor = part(compute(part(rows[0], before)[None])[0], behind)[None]
        return found

    def _attention(self, normed: Tensor, context: Tensor, positions: Tensor) -> Tensor:
        part, block = self.self_attn, normed.shape[1]
        both = torch.cat([context, normed], 1)

        def heads(x: Tensor) -> Tensor:
            return x.unflatten(-1, (-1, SIZE))

        angles = positions[..., None] * THETA ** (-torch.arange(0, SIZE, 2) / SIZE)
        cos, sin = (
            torch.cat([angles, angles], -1).cos()[:, None],
            torch.cat([angles, angles], -1).sin()[:, None],
        )

        def rotated(x: Tensor) -> Tensor:
            low, high = x.chunk(2, -1)
            rows = x.shape[2]
            return x * cos[:, :, -rows:] + torch.cat([-high, low], -1) * sin[:, :, -rows:]

        q = rotated(part["q_norm"](heads(part["q_proj"](normed))).transpose(1, 2))
        k = rotated(part["k_norm"](heads(part["k_proj"](both))).transpose(1, 2))
        v = heads(part["v_proj"](both)).transpose(1, 2)
        k, v = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
        seen = torch.ones(block, context.shape[1] + block, dtype=torch.bool)
        if self.window:
            seen[:, : max(0, context.shape[1] - self.window)] = False
        if self.causal:
            seen = seen.tril(context.shape[1])
        mixed = scaled_dot_product_attention(q, k, v, seen).transpose(1, 2).reshape(1, block, -1)
        found: Tensor = part["o_proj"](mixed)
        return found
