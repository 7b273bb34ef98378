"""Files of cached prefixes: keys and values of a text, for a later start with the same model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ovspec_ops
from ovspec.runtime.cache import CachedSequence
from ovspec.runtime.checksums import checksum
from ovspec.runtime.model_identity import identity
from ovspec.runtime.model_runner import ModelRunner
from ovspec_models.files import replace_file

_FORMAT = "ovspec prefix cache 2"
_LONG_ROPE = "long RoPE"
_TOKENS = "token_ids"


def save_prefix(path: Path, folder: Path, runner: ModelRunner, tokens: Sequence[int]) -> int:
    """Write what the cache holds of a text to a safetensors file.

    Args:
        runner: no pass of it may run.

    Returns:
        Tokens that the file holds, whole blocks of them.

    Raises:
        ValueError: not one whole block of the text is cached, or it takes more to go on behind a text.
    """
    from safetensors.numpy import save

    _check_cache(path, runner)
    sequence = CachedSequence()
    # The last token of a text is never taken from a cache.
    found = runner.share(sequence, [*tokens, 0])
    if not found:
        raise ValueError(
            f"{path}: nothing to save: the text has {len(tokens)} tokens, a block {runner.block_size}"
        )
    content: dict[str, NDArray[Any]] = {
        spec.name: runner.cache.read(spec.name, sequence.table) for spec in runner.cache.specs
    }
    content[_TOKENS] = np.array(tokens[:found], np.int64)
    long_rope = str(sequence.long_rope)
    runner.release(sequence)
    known = {"format": _FORMAT, "checksum": _checksum(content), **_identity(folder, runner)}
    known[_LONG_ROPE] = long_rope
    replace_file(path, save(content, known))
    return found


def load_prefix(path: Path, folder: Path, runner: ModelRunner) -> int:
    """Read a file of `save_prefix` into the cache; nothing is changed where it can't be used.

    Args:
        runner: no pass of it may run.

    Returns:
        Tokens that prompts may now begin with.

    Raises:
        ValueError: a file that can't be read, is damaged, or belongs to another model, setting or version; as
            `save_prefix`.
    """
    _check_cache(path, runner)
    content, known = _read(path)
    if known.get("format") != _FORMAT or _TOKENS not in content:
        raise ValueError(f"{path} is no prefix cache: write one with `ovspec cache save`")
    for part, text in _identity(folder, runner).items():
        if known.get(part) != text:
            raise ValueError(f"{path} was made with another {part}: write it again with `ovspec cache save`")
    if known.get("checksum") != _checksum(content):
        raise ValueError(f"{path} is damaged: write it again with `ovspec cache save`")
    tokens = content[_TOKENS].tolist()
    sequence = CachedSequence(long_rope=known.get(_LONG_ROPE) == "True")
    blocks = runner.blocks.missing(sequence, len(tokens))
    spare = runner.blocks.spare
    if blocks > min(runner.blocks.max_cached, blocks if spare is None else spare):
        raise ValueError(
            f"{path} has {len(tokens)} tokens, more than the prefix cache keeps: raise cache_size, or "
            "shorten the text"
        )
    runner.cache.ensure(runner.blocks.required([(sequence, len(tokens))]))
    runner.blocks.reserve(sequence, len(tokens))
    for spec in runner.cache.specs:
        runner.cache.write(spec.name, sequence.table, content[spec.name])
    sequence.length = len(tokens)
    runner.publish(sequence, tokens)
    runner.release(sequence)
    return len(tokens)


def _check_cache(path: Path, runner: ModelRunner) -> None:
    if runner.recurrent:
        raise ValueError(
            f"{path}: a prefix cache holds keys and values, and this model's layers of linear attention have "
            "none; leave it out"
        )


def _read(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}; write one with `ovspec cache save`") from error
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged ({error}): write it again with `ovspec cache save`") from error


def _identity(folder: Path, runner: ModelRunner) -> dict[str, str]:
    """All that keys and values depend on beside the tokens, a text per part."""
    backends = runner.backends
    specs = [(spec.name, spec.element_type.get_type_name(), spec.block_shape) for spec in runner.cache.specs]
    settings = {name: str(value) for name, value in backends.properties.items() if name != "CACHE_DIR"}
    device = runner.compiled.get_property("EXECUTION_DEVICES")
    return {
        **identity(folder),
        # By content, not by times of files: the file may come from another machine.
        "ovspec": version("ovspec"),
        "native library": checksum(ovspec_ops.extension_path()),
        "setting": json.dumps([backends.graph, settings], sort_keys=True, default=str),
        "prefill": str(runner.attention.prefill or "dense"),
        "cache layout": json.dumps(specs),
        "device": str(device),
    }


def _checksum(content: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.blake2b(digest_size=32)
    for name in sorted(content):
        digest.update(f"{name} {content[name].shape}".encode())
        digest.update(np.ascontiguousarray(content[name]).data)
    return digest.hexdigest()
