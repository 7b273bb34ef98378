"""The file of a cached prefix: tensors of bytes and what they were made with, in safetensors' format."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovspec_models.folder.files import replace_file
from ovspec_models.folder.shown import cut

_FORMAT, _VERSION = "ovspec prefix cache ", 3
_TOKENS = "token_ids"
_CHECKSUM, _LONG_ROPE = "checksum", "long RoPE"
_TYPES = {_TOKENS: "I64"}  # all others are bytes: NumPy has no bf16
_AGAIN = "save it again with `ovspec cache save`"
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class PrefixFile:
    """What a file holds.

    Attributes:
        tokens: i64 `[tokens]`, whole blocks of them.
        blocks: u8 `[blocks, bytes]` of each tensor of the cache.
        long_rope: whether the keys have the long frequencies of a model with long RoPE.
        made_with: a text for everything that the bytes depend on beside the tokens.
    """

    tokens: NDArray[np.int64]
    blocks: dict[str, NDArray[np.uint8]]
    long_rope: bool
    made_with: dict[str, str]

    @classmethod
    def read(cls, path: Path) -> PrefixFile:
        """Read a file whole.

        Raises:
            ValueError: it can't be read, is damaged, no prefix cache, or one of another version.
        """
        content, known = _read(path)
        if known.pop(_CHECKSUM, None) != _checksum(content, known):
            raise ValueError(f"{path} is damaged: {_AGAIN}")
        tokens, long_rope = content.pop(_TOKENS), known.pop(_LONG_ROPE, None) == "True"
        known.pop("format")
        return cls(tokens, content, long_rope, known)

    def write(self, path: Path) -> None:
        """Write it to a file, which is complete or unchanged.

        Raises:
            OSError: it can't be written.
        """
        from safetensors.numpy import save

        content: dict[str, NDArray[Any]] = {**self.blocks, _TOKENS: self.tokens}
        known = {**self.made_with, "format": f"{_FORMAT}{_VERSION}", _LONG_ROPE: str(self.long_rope)}
        replace_file(path, save(content, {**known, _CHECKSUM: _checksum(content, known)}))

    def check(self, path: Path, here: Mapping[str, str], blocks: Mapping[str, int], block_size: int) -> None:
        """Refuse a file that does not fit this process.

        Args:
            path: for messages.
            here: what bytes depend on in this process.
            blocks: bytes of a block of each tensor of the cache.
            block_size: tokens of a block.

        Raises:
            ValueError: it says what differs.
        """
        for part in (*here, *self.made_with):
            then, now = self.made_with.get(part, "none"), here.get(part, "none")
            if then == now:
                continue
            part, then, now = cut(part), cut(then, 200), cut(now, 200)
            if _HASH.search(then + now):
                raise ValueError(f"{path} was saved with another {part} than this process has: {_AGAIN}")
            raise ValueError(f"{path} was saved with {part} {then}, this process has {now}: {_AGAIN}")
        count, rest = divmod(len(self.tokens), block_size)
        found = {name: array.shape for name, array in self.blocks.items()}
        wanted = {name: (count, size) for name, size in blocks.items()}
        for name in (*wanted, *found):
            if found.get(name) != wanted.get(name):
                raise ValueError(
                    f"{path}: the tensor {cut(name)} has the shape {found.get(name)}, expected "
                    f"{wanted.get(name)}: {_AGAIN}"
                )
        if rest or not count:
            raise ValueError(
                f"{path} has {len(self.tokens)} tokens, expected whole blocks of {block_size}: {_AGAIN}"
            )


def _read(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Tensors and texts of a file of this version, whose types and ranks are right."""
    from safetensors import SafetensorError, safe_open

    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no file: write one with `ovspec cache save`")
    try:
        with safe_open(path, framework="numpy") as file:
            known = dict(file.metadata() or {})
            _check_format(path, known)
            for name in file.keys():  # noqa: SIM118
                part = file.get_slice(name)
                _check_tensor(path, name, part.get_dtype(), len(part.get_shape()))
            if _TOKENS not in file.keys():  # noqa: SIM118
                raise ValueError(f"{path} has no {_TOKENS}: {_AGAIN}")
            return {name: file.get_tensor(name) for name in file.keys()}, known  # noqa: SIM118
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}; write one with `ovspec cache save`") from error
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged ({cut(str(error), 200)}): {_AGAIN}") from error


def _check_format(path: Path, known: Mapping[str, str]) -> None:
    found, wanted = known.get("format", ""), f"{_FORMAT}{_VERSION}"
    if not found.startswith(_FORMAT):
        raise ValueError(f"{path} is no prefix cache: write one with `ovspec cache save`")
    if found != wanted:
        raise ValueError(
            f"{path} is of another version ({cut(found)!r}), this ovspec reads {wanted!r}: {_AGAIN}"
        )


def _check_tensor(path: Path, name: str, element_type: str, rank: int) -> None:
    wanted = (_TYPES.get(name, "U8"), 1 if name == _TOKENS else 2)
    if (element_type, rank) != wanted:
        raise ValueError(
            f"{path}: the tensor {cut(name)} is {element_type} of {rank} dimensions, expected {wanted[0]} "
            f"of {wanted[1]}: {_AGAIN}"
        )


def _checksum(content: Mapping[str, NDArray[Any]], known: Mapping[str, str]) -> str:
    digest = hashlib.blake2b(digest_size=32)
    digest.update(repr(sorted(known.items())).encode(errors="surrogatepass"))
    for name in sorted(content):
        digest.update(f"{name} {content[name].shape}".encode(errors="surrogatepass"))
        digest.update(np.ascontiguousarray(content[name]).data)
    return digest.hexdigest()
