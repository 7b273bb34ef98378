"""What changes a DFlash head's logits by the tokens drafted before, in torch: references by the papers."""

from __future__ import annotations

from typing import Any

import torch
from drafters.eagle3_models import HIDDEN, VOCAB
from torch import Tensor, nn

RANK = 8
MARKOV = ("vanilla", "gated", "rnn")


def random(size: tuple[int, ...], scale: float = 0.5) -> nn.Parameter:
    return nn.Parameter(scale * torch.randn(size))


class MarkovHead(nn.Module):
    """DSpark's: its parameters have the names of checkpoints."""

    leads = 1
    whole = False

    def __init__(self, kind: str, drafted: int, block: int) -> None:
        super().__init__()
        self.kind = kind
        self.markov_w1, self.markov_w2 = nn.Embedding(VOCAB, RANK), nn.Linear(RANK, drafted, bias=False)
        if kind == "gated":
            self.gate_proj = nn.Linear(HIDDEN + RANK, RANK)
        if kind == "rnn":
            self.joint_proj = nn.Linear(2 * RANK + HIDDEN, 3 * RANK)

    def forward(self, before: Tensor, states: Tensor, logits: Tensor) -> Tensor:
        """Logits of the places of a block, behind the token before each."""
        rows = self.markov_w1(before)
        if self.kind == "gated":
            rows = self.gate_proj(torch.cat([states, rows], -1)).sigmoid() * rows
        if self.kind == "rnn":
            state, found = torch.zeros(RANK), []
            for row, hidden in zip(rows, states, strict=True):
                gate, new, out = self.joint_proj(torch.cat([state, row, hidden])).chunk(3)
                state = gate.sigmoid() * state + (1 - gate.sigmoid()) * new.tanh()
                found.append(out.tanh())
            rows = torch.stack(found)
        found_logits: Tensor = logits + self.markov_w2(rows)
        return found_logits


class ConfidenceHead(nn.Module):
    """DSpark's: how likely the token of a place is to be right."""

    def __init__(self, reads_token: bool) -> None:
        super().__init__()
        self.reads_token = reads_token
        self.proj = nn.Linear(HIDDEN + RANK * reads_token, 1)

    def forward(self, states: Tensor, rows: Tensor) -> Tensor:
        read = torch.cat([states, rows], -1) if self.reads_token else states
        found: Tensor = self.proj(read)[..., 0].sigmoid()
        return found


#: The module of each form of DFlash, and what config.json says of it.
FORMS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    **{
        f"dspark, {kind}": (
            "markov_head",
            lambda *sizes, kind=kind: MarkovHead(kind, *sizes),
            {
                "architectures": ["DSparkDraftModel"],
                "markov_rank": RANK,
                "markov_head_type": kind,
                "enable_confidence_head": False,
            },
        )
        for kind in MARKOV
    },
}
