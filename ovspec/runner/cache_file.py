"""Cached prefixes in files: keys and values of a text, for a later start with the same model."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import openvino as ov

import ovspec_ops
from ovspec.adapters.model_adapters import LoadedBlend
from ovspec.cache.cache import CachedSequence, CacheTensor
from ovspec.devices.devices import processor
from ovspec.devices.properties import precision_name
from ovspec.graphs.checksums import checksum
from ovspec.graphs.model_identity import identity
from ovspec.runner.model_runner import ModelRunner
from ovspec.runner.prefix_file import PrefixFile

# Properties of a compiled model that change what it computes, where the device has them.
_ARITHMETIC = (
    *("INFERENCE_PRECISION_HINT", "EXECUTION_MODE_HINT", "DYNAMIC_QUANTIZATION_GROUP_SIZE"),
    *("CPU_DENORMALS_OPTIMIZATION", "CPU_SPARSE_WEIGHTS_DECOMPRESSION_RATE", "ENABLE_TENSOR_PARALLEL"),
)
# Given properties that are no part of the identity: a place, and what has a part of its own.
_OWN_PART = ("CACHE_DIR", "INFERENCE_NUM_THREADS", *_ARITHMETIC)
_MORE_ROOM = "raise cache_size (of a server: --cache-size) or --memory-limit"


def save_prefix(
    path: Path,
    folder: Path,
    runner: ModelRunner,
    tokens: Sequence[int],
    adapters: LoadedBlend | None = None,
) -> int:
    """Write what the cache holds of a text to a safetensors file.

    Args:
        runner: no pass of it may run.
        adapters: that the text was read with.

    Returns:
        Tokens that the file holds, whole blocks of them.

    Raises:
        ValueError: not one whole block of the text is cached, or it takes more to go on behind a text.
        OSError: the file can't be written.
    """
    _check_cache(path, runner)
    sequence = CachedSequence(adapters=adapters)
    try:
        # The last token of a text is never taken from a cache.
        found = runner.share(sequence, [*tokens, 0])
        if not found:
            raise ValueError(f"{path}: nothing to save: {_why_nothing(runner, len(tokens))}")
        blocks = {spec.name: runner.cache.read(spec.name, sequence.table) for spec in _kept(runner)}
        made_with, held = _identity(folder, runner, adapters), np.array(tokens[:found], np.int64)
        PrefixFile(held, blocks, sequence.long_rope, made_with).write(path)
    finally:
        runner.release(sequence)
    return found


def load_prefix(path: Path, folder: Path, runner: ModelRunner, adapters: LoadedBlend | None = None) -> int:
    """Read a file of `save_prefix` into the cache; nothing is changed where it can't be used.

    Args:
        runner: no pass of it may run.
        adapters: of the requests that are to find it.

    Returns:
        Tokens that prompts may now begin with.

    Raises:
        ValueError: a file that can't be read, is damaged, or belongs to another model, setting, machine or
            version; as `save_prefix`.
    """
    _check_cache(path, runner)
    file, specs = PrefixFile.read(path), _kept(runner)
    sizes = {spec.name: math.prod(spec.block_shape) * int(spec.element_type.size) for spec in specs}
    file.check(path, _identity(folder, runner, adapters), sizes, runner.block_size)
    length, sequence = len(file.tokens), CachedSequence(long_rope=file.long_rope, adapters=adapters)
    blocks, spare = runner.blocks.missing(sequence, length), runner.blocks.spare
    if blocks > (most := min(runner.blocks.max_cached, blocks if spare is None else spare)):
        kept = most * runner.block_size
        raise ValueError(
            f"{path} has {length} tokens, more than the prefix cache keeps, {kept}: {_MORE_ROOM}, or shorten "
            "the text"
        )
    runner.cache.ensure(runner.blocks.required([(sequence, length)]))
    try:
        runner.blocks.reserve(sequence, length)
        for spec in specs:
            runner.cache.write(spec.name, sequence.table, file.blocks[spec.name])
        sequence.length = length
        runner.publish(sequence, file.tokens.tolist())
    finally:
        runner.release(sequence)
    return length


def _why_nothing(runner: ModelRunner, length: int) -> str:
    """Why nothing of a text is in the cache."""
    if not runner.blocks.max_cached:
        return f"the prefix cache has no room for a block: {_MORE_ROOM}, and leave enable_prefix_caching on"
    least = max(runner.block_size, runner.attention.prompt_piece)
    return f"the text has {length} tokens, a block {least}"


def _check_cache(path: Path, runner: ModelRunner) -> None:
    if runner.recurrent:
        raise ValueError(
            f"{path}: a prefix cache holds keys and values, and this model's layers of linear attention have "
            "none; leave it out"
        )


def _kept(runner: ModelRunner) -> list[CacheTensor]:
    """What a file has. Our operations make summaries from the keys where they read them."""
    native = runner.attention.backend == "native"
    return [spec for spec in runner.cache.specs if not (native and spec.name.startswith("key_summary."))]


def _identity(folder: Path, runner: ModelRunner, adapters: LoadedBlend | None) -> dict[str, str]:
    """All that keys and values depend on beside the tokens, a text per part.

    A norm's or a softmax's kernel is OpenVINO's, chosen by the processor, also where our operations compute
    all products. How OpenVINO's own products are split among threads changes their sums.
    """
    backends = runner.backends
    specs = [(spec.name, spec.element_type.get_type_name(), spec.block_shape) for spec in _kept(runner)]
    given = {name: str(value) for name, value in backends.properties.items() if name not in _OWN_PART}
    return {
        **identity(folder),
        # By content, not by times of files: the file may come from another machine.
        "ovspec": version("ovspec"),
        "native library": checksum(ovspec_ops.extension_path()),
        "instruction set": ovspec_ops.active_isa() if backends.native else "none of ovspec's",
        "processor": processor(backends.device),
        "number of threads": _threads(runner),
        **{name: precision_name(value) for name, value in _arithmetic(runner.compiled).items()},
        # A row without adapters has the same bits in a graph that has a place for them.
        **{name: _text(value) for name, value in backends.graph.items() if name != "adapts"},
        "set of LoRA adapters": adapters.identity.hex() if adapters else "none",
        **given,
        "prefill": str(runner.attention.prefill or "dense"),
        "cache layout": json.dumps(specs),
    }


def _arithmetic(compiled: ov.CompiledModel) -> dict[str, object]:
    known = set(compiled.get_property("SUPPORTED_PROPERTIES"))
    return {name: compiled.get_property(name) for name in _ARITHMETIC if name in known}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def _threads(runner: ModelRunner) -> str:
    """The number of threads where sums depend on it: in OpenVINO's own products and attention."""
    return str(runner.compiled.get_property("INFERENCE_NUM_THREADS")) if runner.identity_breakers else "any"
