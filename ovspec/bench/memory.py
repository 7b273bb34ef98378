"""Check whether the compiled models of a benchmark fit in memory together."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from ovspec.bench.bandwidth import buffer_bytes
from ovspec.bench.rounds import name_of
from ovspec.bench.source import ModelSource
from ovspec.memory.machine_memory import available_bytes

_GB = 1e9
_STOCK = ("stock", "genai", "genai_sdpa")  # with caches as OpenVINO chooses them


def models_fit(source: ModelSource, names: Iterable[str], tokens: int, available: int) -> bool:
    """Whether the compiled models `names` of a source fit at once, each with a cache of `tokens` tokens."""
    # Compiling repacks the weights. Random ones stay in memory beside that, shared by all compiled models;
    # those of a file are mapped, and the kernel can drop them.
    shared = buffer_bytes(len(os.sched_getaffinity(0))) + (source.weight_bytes if source.synthetic else 0)
    models = {
        name: source.weight_bytes + source.cache_bytes(tokens, name_of(name) in _STOCK) for name in names
    }
    return fits_together(models, shared, available)


def check_models_fit(source: ModelSource, names: Iterable[str], tokens: int) -> None:
    """Refuse modes whose compiled models `names` do not fit at once, each with a cache of `tokens` tokens."""
    if not models_fit(source, names, tokens, available_bytes()):
        raise ValueError(
            "not enough memory for all modes side by side: give fewer --mode, fewer --layers (with "
            "--shape) or a shorter --context"
        )


def fits_together(models: Mapping[str, int], shared: int, available: int) -> bool:
    """Whether all models fit at once.

    `models`: bytes of each compiled model with its cache; `shared`: bytes needed once for all of them.
    """
    largest = max(models, key=lambda name: models[name])
    needed = shared + models[largest]
    if needed > available:
        raise ValueError(
            f"not enough memory for the {largest} model alone: about {needed / _GB:.1f} GB are needed "
            f"(weights, KV cache, buffers), {available / _GB:.1f} GB are available; "
            "give fewer --layers (with --shape) or a shorter --context"
        )
    return shared + sum(models.values()) <= available
