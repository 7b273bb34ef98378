"""States of layer boundaries are transformers' hidden states, and take the place of embeddings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from exported.test_families import TOLERANCE, WIDER
from numpy.typing import NDArray
from settings import F32
from tiny_checkpoints import TINY, by_tier, random_model

from ovspec.cache.cache import CachedSequence
from ovspec.operations.backends import Backends
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner

torch = pytest.importorskip("torch", reason="needs ovspec[export]")
pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")


REFUSED = {
    **dict.fromkeys(("MPT", "Bloom", "Falcon, ALiBi"), "ALiBi"),
    "Gemma 3n": "the model has several residual streams",
    "Gemma 4": "boundary 2: layer 2 attends to the values of another",
}


@pytest.mark.parametrize("name", by_tier([name for name in TINY if name not in REFUSED]))
def test_states_are_those_of_transformers(
    name: str, exported_family: Callable[[str], Path], prompt: NDArray[np.int64]
) -> None:
    """What each layer reads, and what the output layer does."""
    folder = exported_family(name)
    with torch.no_grad():
        states = random_model(TINY[name])(torch.tensor(prompt[None]), output_hidden_states=True).hidden_states
    layers = len(states) - 1
    boundaries = (*range(layers), layers + 1)
    runner = ModelRunner(folder, backends=Backends.resolve(folder, properties=F32, boundaries=boundaries))
    sequence = CachedSequence()
    found = runner.forward([Rows(sequence, prompt, states=len(prompt))]).states
    for boundary, got, want in zip(boundaries, np.split(found, len(boundaries), 1), states, strict=True):
        want = want[0].numpy()
        assert np.abs(got - want).max() < WIDER.get(name, TOLERANCE) * want.std(), boundary


@pytest.mark.parametrize("name", by_tier(list(REFUSED)))
def test_what_has_no_states_of_its_own_is_refused(name: str, exported_family: Callable[[str], Path]) -> None:
    folder = exported_family(name)
    with pytest.raises(ValueError, match=REFUSED[name]):
        ModelRunner(folder, backends=Backends.resolve(folder, properties=F32, boundaries=(0, 1, 2)))
