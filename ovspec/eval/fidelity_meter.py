"""What a sparse setting does to a model's distribution on given texts: mean KL and top-1 agreement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ovspec.cache import CachedSequence
from ovspec.eval.divergence import kl_divergence, log_softmax
from ovspec.expert_budgets import expert_config
from ovspec.limits import DENSE
from ovspec.model_runner import ModelRunner
from ovspec.tables import Rows
from ovspec.verify_config import SparseVerify

# A pass as verification has it: the last accepted token and a draft of five.
ROWS = 6


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Of a setting against dense passes over the same tokens.

    Attributes:
        kl: mean KL(dense || setting) per position, nats, as `ovspec eval fidelity` reports it.
        agreement: share of the positions whose most probable token is dense's.
    """

    kl: float
    agreement: float


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
        kls, agreed = [], 0
        found = (row for index in range(len(self._texts)) for row in self._rows(index, sparse))
        for expected, row in zip(self._expected, found, strict=True):
            kls.append(kl_divergence(log_softmax(expected), log_softmax(row)))
            agreed += int(np.argmax(expected) == np.argmax(row))
        return Fidelity(float(np.mean(kls)), agreed / len(kls))

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

    def _rows(self, index: int, sparse: SparseVerify | None) -> Iterator[NDArray[np.float32]]:
        """Logits f32 `[vocab]` behind every token of a text's end, each valid until the next is asked for."""
        cached, tokens = self._texts[index]
        past = cached.length
        for begin in range(0, len(tokens), ROWS):
            part = tokens[begin : begin + ROWS]
            context = cached.length + len(part)
            limits = DENSE if sparse is None else sparse.limits(context, self._runner.block_size)
            yield from self._runner.forward([Rows(cached, part, sampled=len(part), **limits.rows)])
        cached.rollback(past)
        self._tick()
