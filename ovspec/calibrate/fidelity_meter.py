"""What a sparse setting does to a model's distribution on given texts: mean KL and top-1 agreement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ovspec.eval.divergence import kl_divergence, log_softmax
from ovspec.runtime.cache import CachedSequence
from ovspec.runtime.expert_budgets import expert_config
from ovspec.runtime.ffn_budgets import ffn_config
from ovspec.runtime.model_runner import ModelRunner, PassStats
from ovspec.runtime.tables import Rows
from ovspec.verify.limits import Limits
from ovspec.verify.verify_config import SparseVerify

# A pass as verification has it: the last accepted token and a draft of five.
ROWS = 6


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Of a setting against dense passes over the same tokens.

    Attributes:
        kl: mean KL(dense || setting) per position, nats, as `ovspec eval fidelity` reports it.
        agreement: share of the positions whose most probable token is dense's.
        loss: mean surprise at the texts' next tokens, nats.
        experts_read: experts of a layer that a pass read, mean; 0 where nothing counts them.
        ffn_density: share of the feed-forward channels that a pass read; 1 where nothing limits them.
    """

    kl: float
    agreement: float
    loss: float = 0.0
    experts_read: float = 0.0
    ffn_density: float = 1.0


class FidelityMeter:
    """Compares settings with dense passes at the ends of texts, whose beginnings are read densely.

    As in generation, later sparse passes read the keys and values that earlier ones wrote.

    Args:
        runner: the target; its graph can limit what the settings limit.
        texts: i64 `[tokens]` each.
        positions: of every text at most so many are compared, half of it at most.
        chunk: rows per pass of the beginnings.
        tick: called once per text that was read in full.
    """

    def __init__(
        self,
        runner: ModelRunner,
        texts: Sequence[NDArray[np.int64]],
        positions: int,
        chunk: int,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._runner, self._tick = runner, tick
        self._texts: list[tuple[CachedSequence, NDArray[np.int64]]] = []
        self._expected: list[NDArray[np.float32]] = []
        self._stats: list[PassStats] = []
        for text in texts:
            begin = len(text) - min(positions, len(text) // 2)
            if begin == len(text):
                continue
            cached = CachedSequence()
            runner.prefill(cached, text[:begin], chunk)
            self._texts.append((cached, text[begin:]))
            self._expected += [row.copy() for row in self._rows(-1, None)]
            tick()

    @property
    def positions(self) -> int:
        """Positions that every setting is compared at."""
        return len(self._expected)

    def measure(self, sparse: SparseVerify) -> Fidelity:
        """Run the texts' ends with a setting."""
        self._apply(sparse)
        self._stats = []
        kls, losses, agreed = [], [], 0
        found = (row for index in range(len(self._texts)) for row in self._rows(index, sparse))
        tokens = (token for _, text in self._texts for token in [*text[1:], -1])
        for expected, row, following in zip(self._expected, found, tokens, strict=True):
            log_q = log_softmax(row)
            kls.append(kl_divergence(log_softmax(expected), log_q))
            agreed += int(np.argmax(expected) == np.argmax(row))
            if following >= 0:
                losses.append(-log_q[following])
        read, density = _weights_read(self._stats)
        loss = float(np.mean(losses)) if losses else 0.0
        return Fidelity(float(np.mean(kls)), agreed / len(kls), loss, read, density)

    def release(self) -> None:
        """Give the texts' blocks back."""
        for cached, _ in self._texts:
            self._runner.release(cached)

    def _apply(self, sparse: SparseVerify) -> None:
        if sparse.limits_attention and sparse.coverage is not None:
            self._runner.set_coverage(sparse.coverage)
        experts = self._runner.experts
        if experts is not None and (limits := expert_config(experts.backend, sparse)) is not None:
            self._runner.set_experts(limits)
        ffn = self._runner.ffn
        if ffn is not None and (channels := ffn_config(ffn.backend, sparse)) is not None:
            self._runner.set_ffn(channels)

    def _rows(self, index: int, sparse: SparseVerify | None) -> Iterator[NDArray[np.float32]]:
        """Logits f32 `[vocab]` behind every token of a text's end, each valid until the next is asked for."""
        cached, tokens = self._texts[index]
        past = cached.length
        for begin in range(0, len(tokens), ROWS):
            part = tokens[begin : begin + ROWS]
            context = cached.length + len(part)
            limits = Limits.of(sparse, context, self._runner.block_size)
            logits = self._runner.forward([Rows(cached, part, sampled=len(part), **limits.rows)])
            self._stats.append(self._runner.last_pass)
            yield from logits
        cached.rollback(past)
        self._tick()


def _weights_read(passes: Sequence[PassStats]) -> tuple[float, float]:
    """Experts of a layer, and share of the channels, that passes read in the mean."""
    experts = [read for stats in passes for read in stats.experts_read]
    held = sum(sum(stats.channels_held) for stats in passes)
    channels = sum(sum(stats.channels_read) for stats in passes)
    return sum(experts) / len(experts) if experts else 0.0, channels / held if held else 1.0
