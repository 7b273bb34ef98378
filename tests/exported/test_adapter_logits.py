"""Logits with an adapter are those of transformers with W + scale * B A in the place of W."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_files import random_matrices, write_adapter
from exported.test_families import TOLERANCE, WIDER
from numpy.typing import NDArray
from settings import F32
from tiny_checkpoints import TINY, by_tier, random_model

import ovspec
from ovspec.adapters.adapter_config import AdapterBlend
from ovspec.cache.cache import CachedSequence
from ovspec.operations.backends import Backends
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner

torch = pytest.importorskip("torch", reason="needs ovspec[export]")
pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")

REFUSED = ("MPT", "Falcon, ALiBi", "Bloom")
# Layers that share others' keys compute none of their own.
LEFT = {"Gemma 3n": ["k_proj", "v_proj"]}


def linear_layers(model: Any) -> dict[str, Any]:
    """The linear layers of a checkpoint's decoder layers, by name; not those of no channels."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and name != "lm_head" and module.weight.numel()
    }


@pytest.mark.parametrize("name", by_tier([name for name in TINY if name not in REFUSED]))
def test_logits_are_those_of_merged_weights(
    name: str, exported_family: Callable[[str], Path], prompt: NDArray[np.int64], tmp_path: Path
) -> None:
    """Every linear layer that `ovspec` computes, read in a prompt's chunks and in few rows behind it."""
    folder = exported_family(name)
    runner = ModelRunner(folder, backends=Backends.resolve(folder, properties=F32, adapts=True))
    model = random_model(TINY[name])
    # Some exports have a wrapper's name in front.
    known, layers = [f".{known}" for known in runner.adapters.names], linear_layers(model)
    chosen = {
        layer: module for layer, module in layers.items() if any(one.endswith(f".{layer}") for one in known)
    }
    left = sorted({layer.rpartition(".")[2] for layer in layers.keys() - chosen.keys()})
    assert chosen and left == LEFT.get(name, []), f"no adapter adds to {left}"
    sizes = {layer: (of.in_features, of.out_features) for layer, of in chosen.items()}
    matrices = random_matrices(sizes, rank=5, strength=2.0)
    path = write_adapter(tmp_path / "adapter.safetensors", matrices, {"lora_alpha": 10})
    blend = AdapterBlend(((ovspec.Adapter(path), 0.75),))
    with torch.no_grad():
        before = model(torch.tensor(prompt[None])).logits[0].numpy()
        for layer, (a, b) in matrices.items():
            chosen[layer].weight += 0.75 * 2.0 * torch.tensor(b) @ torch.tensor(a)
        expected = model(torch.tensor(prompt[None])).logits[0].numpy()
    sequence, got = CachedSequence(adapters=runner.adapters.load(blend)), []
    plain, base = CachedSequence(), []
    for begin, end in (0, 60), (60, 120), *((begin, begin + 6) for begin in range(120, 150, 6)):
        part, count = prompt[begin:end], end - begin
        rows = [Rows(of, part, sampled=count, text_length=len(prompt)) for of in (sequence, plain)]
        logits = np.array(runner.forward(rows).logits)
        got.append(logits[:count])
        base.append(logits[count:])
    tolerance = WIDER.get(name, TOLERANCE)
    assert np.abs(np.concatenate(got) - expected).max() < tolerance * expected.std()
    assert np.abs(np.concatenate(base) - before).max() < tolerance * before.std()
    assert np.abs(expected - before).max() > 0.1 * before.std()
