"""An EAGLE-3 head in torch (arXiv 2503.01840), with its training-time test.

Entry j pairs the target's state at position j with the embedding of token j + 1 and predicts token j + 2.
In step k of the training-time test, row j stands for the k-th token of a draft that began after entry j: its
feature is the head's own state of step k - 1, its token is token j + 1 + k, and it attends to the true
entries 0 to j and to the entries that the same draft made in steps 1 to k. The state of every boundary passes
a norm before `fc`, as in EAGLE-3.1 (`fc_norm`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

#: The smallest size of a number of normed states for which `fit_norms` makes up.
_SMALLEST = 0.01


class Eagle3Net(nn.Module):
    """The head. Its parameters have the names of published checkpoints.

    Args:
        config: as config.json of a published head.
        boundaries: how many states of the target it reads for a token.
        embedding: of the target, f32 `[vocabulary, hidden size]`; it is not trained.
    """

    def __init__(self, config: dict[str, Any], boundaries: int, embedding: Tensor) -> None:
        super().__init__()
        hidden, size, inner = config["hidden_size"], config["head_dim"], config["intermediate_size"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.size = size
        norm = partial(nn.RMSNorm, hidden, config["rms_norm_eps"])
        self.fc_norm = nn.ModuleList(norm() for _ in range(boundaries))
        self.fc = _linear(boundaries * hidden, hidden)
        self.midlayer = nn.ModuleDict(
            {
                "hidden_norm": norm(),
                "input_layernorm": norm(),
                "self_attn": nn.ModuleDict(
                    {
                        "q_proj": _linear(2 * hidden, self.heads * size),
                        "k_proj": _linear(2 * hidden, self.kv_heads * size),
                        "v_proj": _linear(2 * hidden, self.kv_heads * size),
                        "o_proj": _linear(self.heads * size, hidden),
                    }
                ),
                "post_attention_layernorm": norm(),
                "mlp": nn.ModuleDict(
                    {
                        "gate_proj": _linear(hidden, inner),
                        "up_proj": _linear(hidden, inner),
                        "down_proj": _linear(inner, hidden),
                    }
                ),
            }
        )
        self.norm = norm()
        self.lm_head = _linear(hidden, config["draft_vocab_size"])
        self.register_buffer("embedding", embedding, persistent=False)
        frequencies = config["rope_theta"] ** (-torch.arange(0, size, 2) / size)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def fit_norms(self, states: Tensor) -> None:
        """Begin with norms that give every number of the target's states a root mean square of 1.

        States of a text's first token are a hundred times larger than others, and a few numbers of every
        state ten times larger than the rest.

        Args:
            states: of the target, `[rows, states]`.
        """
        for norm, part in zip(self.fc_norm, states.float().chunk(len(self.fc_norm), -1), strict=True):
            normed = nn.functional.rms_norm(part, part.shape[-1:])
            norm.weight.data.copy_(normed.pow(2).mean(0).clamp_min(_SMALLEST**2).rsqrt())

    def unrolled(self, states: Tensor, tokens: Tensor, entries: Tensor, steps: int) -> Iterator[Tensor]:
        """Normed states of every step of the training-time test, `[batch, rows, hidden size]`.

        `lm_head` makes logits of them. A row is computed for each of `entries`; the others are attended to.

        Args:
            states: of the target, f32 `[batch, length, states]`.
            tokens: i64 `[batch, length]`.
            entries: i64 `[batch, rows]`, behind which drafts begin.
            steps: tokens of a draft. Ignore the rows of a step whose tokens stand past the text.
        """
        attention, mlp = self.midlayer["self_attn"], self.midlayer["mlp"]
        every = torch.arange(tokens.shape[1] - 1, device=tokens.device)
        batch = torch.arange(len(tokens), device=tokens.device)[:, None]
        features = self._features(states[:, :-1])
        both = self._both(tokens[:, 1:], features)
        keys = [self._wide(self._rotated(self._split(attention["k_proj"](both)), every[None]))]
        values = [self._wide(self._split(attention["v_proj"](both)))]
        later = (every > entries[..., None])[:, None]  # [batch, 1, rows, length - 1]
        hidden = features[batch, entries]
        for step in range(steps):
            places = entries + step
            both = self._both(tokens[batch, (places + 1).clamp_max(len(every))], hidden)
            q, k, v = (self._split(attention[f"{part}_proj"](both)) for part in "qkv")
            if step:
                keys.append(self._wide(self._rotated(k, places)))
                values.append(self._wide(v))
            mixed = _attention(self._rotated(q, places), keys, values, later).transpose(1, 2).flatten(2)
            hidden = hidden + attention["o_proj"](mixed)
            inner = self.midlayer["post_attention_layernorm"](hidden)
            hidden = hidden + mlp["down_proj"](silu(mlp["gate_proj"](inner)) * mlp["up_proj"](inner))
            yield self.norm(hidden)

    def _features(self, states: Tensor) -> Tensor:
        """The residual stream's begin, f32 in mixed precision too."""
        parts = states.chunk(len(self.fc_norm), -1)
        normed = [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)]
        features: Tensor = self.fc(torch.cat(normed, -1)).float()
        return features

    def _both(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """What attention reads: tokens, and what is known of those before them."""
        embedded = self.midlayer["input_layernorm"](self.embedding[tokens])
        return torch.cat([embedded, self.midlayer["hidden_norm"](hidden)], -1)

    def _split(self, x: Tensor) -> Tensor:
        """`[batch, rows, heads * size]` to `[batch, heads, rows, size]`."""
        return x.unflatten(-1, (-1, self.size)).transpose(1, 2)

    def _wide(self, x: Tensor) -> Tensor:
        """Keys or values for all query heads."""
        return x.repeat_interleave(self.heads // self.kv_heads, 1)

    def _rotated(self, x: Tensor, places: Tensor) -> Tensor:
        """Rotary positions of the rows, i64 `[batch or 1, rows]`."""
        angles = (places[..., None] * self.frequencies)[:, None]
        cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
        low, high = x.chunk(2, -1)
        return x * cos + torch.cat([-high, low], -1) * sin


def _linear(read: int, written: int) -> nn.Linear:
    layer = nn.Linear(read, written, bias=False)
    nn.init.normal_(layer.weight, std=read**-0.5)
    return layer


def _attention(q: Tensor, keys: list[Tensor], values: list[Tensor], later: Tensor) -> Tensor:
    """Each row sees the first keys that are not `later` than it, and its own row of all others."""
    scale, entries = q.shape[-1] ** -0.5, later.shape[-1]
    scores = [(q @ keys[0].transpose(2, 3) * scale).masked_fill(later, -torch.inf)]
    scores += [((q * key).sum(-1, keepdim=True) * scale) for key in keys[1:]]
    weights = torch.cat(scores, -1).softmax(-1)
    mixed = weights[..., :entries] @ values[0]
    for place, value in enumerate(values[1:], entries):
        mixed = mixed + weights[..., place : place + 1] * value
    return mixed
