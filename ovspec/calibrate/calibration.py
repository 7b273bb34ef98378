"""Calibration of anchor layers on a user's texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.runtime.attention_config import AttentionConfig
from ovspec.runtime.cache import CachedSequence
from ovspec.runtime.model_runner import ModelRunner
from ovspec.runtime.native_selection import selects
from ovspec.runtime.pass_result import PassResult
from ovspec.runtime.prompt_pieces import DEFAULT_MAX_NUM_BATCHED_TOKENS
from ovspec.runtime.tables import Rows
from ovspec_models.sparse_verify import SparseVerify
from ovspec_ops.block_select.reference import sinks_and_tail
from ovspec_transforms import anchor_of, choose_anchors, default_anchor_layers, list_overlap

# Rows of a verification pass: the last accepted token and a draft of five.
ROWS = 6
Tick = Callable[[int], None]


class Observer(Protocol):
    """Observes every verification pass of a meter."""

    def observe(self, result: PassResult) -> None:
        """Read outputs of the runner's last pass."""


@dataclass(frozen=True, slots=True)
class LayerOverlap:
    """Overlap of the block lists of a model's layers.

    Attributes:
        layers: the layers that can select.
        overlap: f64 `[layers, layers]`, mean Jaccard similarity over KV heads and passes of the blocks that
            were selected by score.
        passes: passes that selected.
        tokens: tokens that the model read.
    """

    layers: tuple[int, ...]
    overlap: NDArray[np.float64]
    passes: int
    tokens: int

    def choose(self, anchors: int | None, least: float | None) -> tuple[int, ...]:
        """Choose a given number of anchor layers, or the fewest with a given minimal overlap."""
        return tuple(self.layers[row] for row in choose_anchors(self.overlap, anchors, least))

    def with_anchor(self, anchors: Sequence[int]) -> list[float]:
        """Per layer, the overlap of its list with its anchor's."""
        rows = {layer: row for row, layer in enumerate(self.layers)}
        return [float(self.overlap[rows[anchor_of(layer, anchors)], rows[layer]]) for layer in self.layers]

    def default_anchors(self) -> tuple[int, ...]:
        """The anchors of the default rule."""
        return default_anchor_layers(self.layers)


class OverlapMeter:
    """Runs a model densely over texts while every layer selects.

    Args:
        model: folder with its IR, or the model itself.
        observers: called after every verification pass; their outputs are in `model`.
    """

    def __init__(
        self,
        model: Path | ov.Model,
        sparse: SparseVerify,
        properties: dict[str, object] | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._observers = observers
        self._sparse = sparse
        self._rule = sparse.selection
        coverage = 1.0 if sparse.coverage is None else sparse.coverage
        attention = AttentionConfig(
            "native", selects=True, selection=self._rule, coverage=coverage, watches=True
        )
        self._coverage = coverage
        self._runner = ModelRunner(model, "CPU", attention, properties or {})
        names = [port.get_any_name().partition(".") for port in self._runner.compiled.inputs]
        self.layers = tuple(sorted(int(layer) for name, _, layer in names if name == "key_summary"))

    def measure(
        self, texts: Sequence[NDArray[np.int64]], stride: int, tick: Tick = lambda tokens: None
    ) -> LayerOverlap:
        """Read the texts; after every `stride` tokens, compare the lists of a verification pass.

        Args:
            texts: i64 `[tokens]` each.
            stride: tokens between two verification passes, at least 6.
            tick: called with the number of tokens that were read since the last call.
        """
        total, passes, read = np.zeros(()), 0, 0
        for text in texts:
            cached = CachedSequence()
            try:
                while len(text) - cached.length >= ROWS:
                    behind = min(cached.length + stride - ROWS, len(text) - ROWS)
                    before = cached.length
                    if behind > before:
                        self._runner.prefill(cached, text[before:behind], DEFAULT_MAX_NUM_BATCHED_TOKENS)
                    overlap = self._pass(cached, text[cached.length : cached.length + ROWS])
                    if overlap is not None:
                        total, passes = total + overlap, passes + 1
                    read += cached.length - before
                    tick(cached.length - before)
            finally:
                self._runner.release(cached)
        if not passes:
            longest = max(len(text) for text in texts)
            raise ValueError(
                f"nothing was selected: the longest text has {longest} tokens; what may be read is all of "
                "it, or no more than the blocks at both ends that always are; give longer texts, or another "
                "--budget or --l0"
            )
        return LayerOverlap(self.layers, total / passes, passes, read)

    def _pass(self, cached: CachedSequence, tokens: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """Overlap of the lists of one verification pass; `None` if its budget leaves no choice."""
        size, past = self._runner.block_size, cached.length
        budget = self._sparse.budget_blocks(past + len(tokens), size)
        rows = Rows(cached, tokens, sampled=1, budget=budget)
        selected = past > 0 and selects(rows, self._coverage, size)
        result = self._runner.forward([rows])
        for observer in self._observers:
            observer.observe(result)
        if not selected:
            return None
        lists = result.output("selected_blocks")
        kept = np.zeros((*lists.shape[:2], lists.shape[2] + 1), np.bool_)
        # Unused entries are -1, which marks the last column.
        np.put_along_axis(kept, lists.astype(np.int64), True, axis=2)
        sinks, tail = sinks_and_tail(past, len(tokens), self._rule.sink_blocks, self._rule.local_blocks)
        scored = np.setdiff1d(np.arange(lists.shape[2]), sorted(sinks | tail))
        chosen = kept[:, :, scored]
        return list_overlap(chosen) if chosen.any() else None
