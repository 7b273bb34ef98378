"""Passes over a user's texts that calibration observes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.cache.cache import CachedSequence
from ovspec.operations.attention_config import AttentionConfig
from ovspec.passes.pass_result import PassResult
from ovspec.passes.prompt_pieces import DEFAULT_MAX_NUM_BATCHED_TOKENS
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner

# Rows of a verification pass: the last accepted token and a draft of five.
ROWS = 6
Tick = Callable[[int], None]


class Observer(Protocol):
    """Observes every verification pass."""

    def observe(self, result: PassResult) -> None:
        """Read the outputs of a pass."""


def observe(
    model: Path | ov.Model,
    properties: dict[str, object],
    observers: Sequence[Observer],
    texts: Sequence[NDArray[np.int64]],
    stride: int,
    tick: Tick = lambda tokens: None,
) -> None:
    """Run a model densely over texts; after every `stride` tokens, a verification pass is observed.

    Args:
        model: folder with its IR, or the model itself, with the outputs that `observers` read.
        texts: i64 `[tokens]` each.
        stride: tokens between two verification passes, at least 6.
        tick: called with the number of tokens that were read since the last call.
    """
    runner = ModelRunner(model, "CPU", AttentionConfig("native"), properties)
    for text in texts:
        cached = CachedSequence()
        try:
            while len(text) - cached.length >= ROWS:
                before, behind = cached.length, min(cached.length + stride, len(text)) - ROWS
                if behind > before:
                    runner.prefill(cached, text[before:behind], DEFAULT_MAX_NUM_BATCHED_TOKENS)
                rows = Rows(cached, text[cached.length : cached.length + ROWS], sampled=1)
                result = runner.forward([rows])
                for observer in observers:
                    observer.observe(result)
                tick(cached.length - before)
        finally:
            runner.release(cached)
