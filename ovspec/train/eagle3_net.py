"""An EAGLE-3 head in torch (arXiv 2503.01840), with its training-time test.

Entry j pairs the target's state at position j with the embedding of token j + 1 and predicts token j + 2.
In step k of the training-time test, row j stands for the k-th token of a draft that began after entry j: its
feature is the head's own state of step k - 1, its token is token j + 1 + k, and it attends to the true
entries 0 to j and to the entries that the same draft made in steps 1 to k.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu


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

    def unrolled(self, states: Tensor, tokens: Tensor, steps: int) -> Iterator[Tensor]:
        """Normed states of every step of the training-time test, `[batch, entries, hidden size]`.

        `lm_head` makes logits of them.

        Args:
            states: of the target, f32 `[batch, length, states]`.
            tokens: i64 `[batch, length]`.
            steps: tokens of a draft. In step k the last k entries stand past the text; ignore them.
        """
        layer = self.midlayer
        embedded = self.embedding[tokens[:, 1:]]
        hidden = self.fc(states[:, :-1]).float()  # the residual stream, in mixed precision too
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for step in range(steps):
            if step:
                embedded = nn.functional.pad(embedded[:, 1:], (0, 0, 0, 1))
            both = torch.cat([layer["input_layernorm"](embedded), layer["hidden_norm"](hidden)], -1)
            q, k, v = (self._split(layer["self_attn"][f"{part}_proj"](both)) for part in "qkv")
            keys.append(self._rotated(k, step).repeat_interleave(self.heads // self.kv_heads, 1))
            values.append(v.repeat_interleave(self.heads // self.kv_heads, 1))
            mixed = _attention(self._rotated(q, step), keys, values).transpose(1, 2).flatten(2)
            hidden = hidden + layer["self_attn"]["o_proj"](mixed)
            inner = layer["post_attention_layernorm"](hidden)
            mlp = layer["mlp"]
            hidden = hidden + mlp["down_proj"](silu(mlp["gate_proj"](inner)) * mlp["up_proj"](inner))
            yield self.norm(hidden)

    def _split(self, x: Tensor) -> Tensor:
        """`[batch, rows, heads * size]` to `[batch, heads, rows, size]`."""
        return x.unflatten(-1, (-1, self.size)).transpose(1, 2)

    def _rotated(self, x: Tensor, begin: int) -> Tensor:
        """Rotary positions `begin`, `begin + 1`, ... of the rows."""
        angles = torch.outer(torch.arange(begin, begin + x.shape[2], device=x.device), self.frequencies)
        cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
        low, high = x.chunk(2, -1)
        return x * cos + torch.cat([-high, low], -1) * sin


def _linear(read: int, written: int) -> nn.Linear:
    layer = nn.Linear(read, written, bias=False)
    nn.init.normal_(layer.weight, std=read**-0.5)
    return layer


def _attention(q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Row j sees rows 0 to j of the first keys, and row j alone of every later ones."""
    scale, rows = q.shape[-1] ** -0.5, q.shape[2]
    hidden = torch.ones(rows, rows, dtype=torch.bool, device=q.device).triu(1)
    scores = [(q @ keys[0].transpose(2, 3) * scale).masked_fill(hidden, -torch.inf)]
    scores += [((q * key).sum(-1, keepdim=True) * scale) for key in keys[1:]]
    weights = torch.cat(scores, -1).softmax(-1)
    mixed = weights[..., :rows] @ values[0]
    for place, value in enumerate(values[1:], rows):
        mixed = mixed + weights[..., place : place + 1] * value
    return mixed
