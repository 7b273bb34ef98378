"""What forms of DFlash have more, in torch: corrections by the tokens drafted before, and convolutions."""

from __future__ import annotations

from typing import Any

import torch
from drafters.eagle3_models import HIDDEN, VOCAB
from torch import Tensor, nn
from torch.nn.functional import silu

RANK = 8
CANDIDATES, TAPS, GROUP = 5, 3, 8
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


class CandidateSelector(nn.Module):
    """DFlash2's."""

    leads = 1
    whole = True

    def __init__(self, drafted: int, block: int) -> None:
        super().__init__()
        self.predecessor_codebook, self.successor_codebook = (random((VOCAB, RANK)) for _ in range(2))
        self.hidden_projection = nn.Linear(HIDDEN, RANK, bias=False)

    def forward(self, before: Tensor, states: Tensor, logits: Tensor) -> Tensor:
        wanted = self.predecessor_codebook[before] * self.hidden_projection(states)
        if self.training:  # the right token may be no candidate yet
            return logits + wanted @ self.successor_codebook.T
        best = logits.topk(CANDIDATES)
        scores = best.values + (wanted[:, None] * self.successor_codebook[best.indices]).sum(-1)
        return torch.full_like(logits, -torch.inf).scatter(1, best.indices, scores)


class RefinerHead(nn.Module):
    """XPress's."""

    leads = 2
    whole = True

    def __init__(self, drafted: int, block: int) -> None:
        super().__init__()
        self.token_embed = nn.Embedding(VOCAB, RANK)
        self.down_h, self.down_g = (nn.Linear(HIDDEN, RANK, bias=False) for _ in range(2))
        self.in_proj = nn.Linear(3 * RANK, RANK, bias=False)
        self.mix_l = random((RANK, block, block))
        self.mlp_gate, self.mlp_up = (nn.Linear(RANK, 2 * RANK, bias=False) for _ in range(2))
        self.mlp_down, self.readout = (
            nn.Linear(size, out, bias=False) for size, out in ((2 * RANK, RANK), (RANK, drafted))
        )

    def forward(self, before: Tensor, states: Tensor, logits: Tensor) -> Tensor:
        whole = self.down_g(states.mean(0)).expand(len(states), -1)
        x = self.in_proj(torch.cat([self.down_h(states), whole, self.token_embed(before)], -1))
        x = x + torch.stack(
            [(self.mix_l[:, place, : place + 1].T * x[: place + 1]).sum(0) for place in range(len(x))]
        )
        x = x + self.mlp_down(silu(self.mlp_gate(x)) * self.mlp_up(x))
        found: Tensor = logits + self.readout(x)
        return found


class Convolution(nn.Module):
    """One of DFlash2's, over the rows of a block."""

    def __init__(self) -> None:
        super().__init__()
        self.base_kernel = random((2, TAPS, HIDDEN), 0.2)
        self.base_kernel.data[:, 0] += 1
        self.kernel_projection = nn.Linear(HIDDEN, 2 * TAPS * HIDDEN // GROUP, bias=False)

    def kernels(self, rows: Tensor) -> Tensor:
        """Of both sides, `[2, rows, taps, hidden]`."""
        own = self.kernel_projection(rows).unflatten(-1, (2, TAPS, -1)).repeat_interleave(GROUP, -1)
        return own.transpose(0, 1) + self.base_kernel[:, None]

    def forward(self, rows: Tensor, kernel: Tensor) -> Tensor:
        found = torch.zeros_like(rows)
        for place in range(len(rows)):
            for tap in range(min(TAPS, place + 1)):
                found[place] = found[place] + kernel[place, tap] * rows[place - tap]
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
    "dflash2": (
        "candidate_selector",
        CandidateSelector,
        {
            "architectures": ["DFlash2DraftModel"],
            "selector_rank": RANK,
            "selector_top_k": CANDIDATES,
            "conv_kernel_size": TAPS,
            "conv_group_size": GROUP,
        },
    ),
    "xpress": (
        "refiner_head",
        RefinerHead,
        {"architectures": ["XPressSpeculator"], "xpress_rank": RANK, "xpress_mlp_ratio": 2},
    ),
}
