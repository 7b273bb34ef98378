"""Models that are started with a CACHE_DIR, and what it then holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from settings import F32

from ovspec.cache.cache import CachedSequence
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner

TOKENS = np.arange(5, 105)
Said = Callable[[], list[str]]


def start(folder: Path, place: Path | None, **settings: Any) -> ModelRunner:
    properties = {**F32, **settings.pop("properties", {})}
    if place is not None:
        properties["CACHE_DIR"] = str(place)
    return ModelRunner(folder, "CPU", properties=properties, **settings)


def logits(runner: ModelRunner) -> NDArray[np.float32]:
    """Logits of a prompt, and of rows under verification after it."""
    sequence = CachedSequence()
    prompt = np.array(runner.forward([Rows(sequence, TOKENS, sampled=4)]).logits)
    drafted = Rows(sequence, TOKENS[:6], sampled=6, budget=2, limits_experts=True, limits_channels=True)
    both = np.concatenate([prompt, runner.forward([drafted]).logits])
    runner.release(sequence)
    return both


def entries(place: Path) -> dict[Path, int]:
    """What is kept, with the time of its record: with another it was written anew."""
    return {entry: (entry / "entry.json").stat().st_mtime_ns for entry in place.glob("ovspec-*")}
