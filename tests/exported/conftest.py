"""Fixtures: every family of models exported once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from made_once import MakeOnce
from numpy.typing import NDArray
from tiny_checkpoints import TINY, VOCAB, export_tiny, random_model


@pytest.fixture(scope="session")
def exported_family(make_once: MakeOnce) -> Callable[[str], Path]:
    """Give the folder of a family, exported in fp32; the checkpoint lies beside it."""
    pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")

    def get(name: str) -> Path:
        return make_once(f"tiny {name}", lambda folder: export_tiny(name, folder)) / "ir"

    return get


@pytest.fixture(scope="session")
def prompt() -> NDArray[np.int64]:
    """150 tokens with phrases that come again, i64: three windows long, and what lookups find drafts in."""
    rng = np.random.default_rng(5)
    phrases = rng.integers(2, VOCAB, (5, 10))
    return phrases[rng.integers(0, 5, 15)].reshape(-1)


@pytest.fixture(scope="session")
def reference(prompt: NDArray[np.int64]) -> Callable[[str], NDArray[np.float32]]:
    """Logits f32 `[150, vocab]` of transformers over the prompt, in one pass without a cache."""
    import torch

    made: dict[str, NDArray[np.float32]] = {}

    def get(name: str) -> NDArray[np.float32]:
        if name not in made:
            with torch.no_grad():
                made[name] = random_model(TINY[name])(torch.tensor(prompt[None])).logits[0].numpy()
        return made[name]

    return get
