"""What the target says of texts, computed once and kept on disk: states, its likeliest tokens, its choice."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovspec.devices.freed_memory import give_back_freed_memory
from ovspec.train.target_passes import Reading, TargetPasses
from ovspec.train.texts import Text
from ovspec_models.folder.files import replace_file
from ovspec_models.folder.json_file import read_json

#: Of the draft vocabulary, how many of the target's likeliest tokens a head learns from at each place.
KEPT_TOKENS = 64
_SAVE_TEXTS = 64


@dataclass(frozen=True, slots=True)
class Known:
    """What the target says of a text.

    Attributes:
        states: of the boundaries, f16 `[tokens, sum of hidden sizes]`, each boundary's in units of its size.
        likely: i32 `[tokens, KEPT_TOKENS or fewer]`, numbers in the draft vocabulary.
        shares: f16, as `likely`: their probabilities, among them.
        best: i32 `[tokens]`, the most probable token of the whole vocabulary.
    """

    states: NDArray[np.float16]
    likely: NDArray[np.int32]
    shares: NDArray[np.float16]
    best: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TargetStates:
    """What the target says of texts; `self[n]` is of text n, until their folder is deleted.

    Attributes:
        sizes: f32 `[sum of hidden sizes]`, the units of the states.
        arrays: by the names of `Known`, of all texts one after the other.
        ends: of each text in them.
    """

    sizes: NDArray[np.float32]
    arrays: dict[str, NDArray[Any]]
    ends: list[int]

    def __getitem__(self, number: int) -> Known:
        rows = slice(self.ends[number - 1] if number else 0, self.ends[number])
        part = {name: np.asarray(array[rows]) for name, array in self.arrays.items()}
        return Known(part["states"], part["likely"], part["shares"], part["best"][:, 0])

    def keep(self, number: int, reading: Reading) -> None:
        """Write what the target says of a text."""
        known = self[number]
        known.states[:] = reading.states / self.sizes
        count = known.likely.shape[1]
        known.likely[:] = np.argpartition(reading.logits, -count, -1)[:, -count:]
        likely = np.take_along_axis(reading.logits, known.likely, -1)
        weights = np.exp(likely - likely.max(-1, keepdims=True))
        known.shares[:] = weights / weights.sum(-1, keepdims=True)
        known.best[:] = reading.best


def states_bytes(texts: Sequence[Text], vocabulary: int, width: int) -> int:
    """What the states of texts take on the disk; arguments as of `read_states`."""
    row = sum(np.dtype(form).itemsize * size for form, size in _forms(vocabulary, width).values())
    return row * sum(map(len, texts))


def read_states(
    folder: Path,
    texts: Sequence[Text],
    target: Callable[[], TargetPasses],
    ids: NDArray[np.int64],
    hidden_sizes: Sequence[int],
    report: Callable[[int], None],
) -> TargetStates:
    """Have the target read texts, those that an earlier call did not.

    Args:
        folder: is made, or goes on being filled.
        target: is called where there is something to read.
        ids: i64, the draft's vocabulary.
        hidden_sizes: of the boundaries.
        report: is called with the tokens read so far.

    Raises:
        ValueError: the disk has no room for them, or the folder is damaged.
    """
    progress = folder / "progress.json"
    ends = np.cumsum([len(text) for text in texts]).tolist()
    forms = _forms(len(ids), sum(hidden_sizes))
    if begun := progress.is_file():
        done, sizes = _progress(progress, len(texts), sum(hidden_sizes))
    else:
        folder.mkdir(parents=True, exist_ok=True)
        _check_room(folder, states_bytes(texts, len(ids), sum(hidden_sizes)))
        done, sizes = 0, np.ones(sum(hidden_sizes), np.float32)
    for name, (form, width) in forms.items():
        _take_room(folder / name, ends[-1] * width * np.dtype(form).itemsize, begun)
    passes = target() if done < len(texts) else None
    if passes and not begun:
        (first,) = passes.read([texts[0].tokens], ids)
        sizes = _sizes(first.states, hidden_sizes)
    arrays = {
        name: np.memmap(folder / name, form, "r+", shape=(ends[-1], width))
        for name, (form, width) in forms.items()
    }
    states = TargetStates(sizes, dict(arrays), ends)
    while passes and done < len(texts):
        part = range(done, min(done + _SAVE_TEXTS, len(texts)))
        for number, reading in zip(part, passes.read([texts[n].tokens for n in part], ids), strict=True):
            states.keep(number, reading)
        done = part.stop
        replace_file(progress, json.dumps({"texts": done, "sizes": sizes.tolist()}).encode())
        give_back_freed_memory()  # the C library kept 7 GB of what parts of 64 texts free
        report(ends[done - 1])
    return states


def _forms(vocabulary: int, width: int) -> dict[str, tuple[type[np.generic], int]]:
    """Type and numbers per token of each array of `Known`."""
    kept = min(KEPT_TOKENS, vocabulary)
    return {
        "states": (np.float16, width),
        "likely": (np.int32, kept),
        "shares": (np.float16, kept),
        "best": (np.int32, 1),
    }


def _progress(path: Path, texts: int, width: int) -> tuple[int, NDArray[np.float32]]:
    """Texts that were read, of so many, and the units of their states."""
    remedy = f"delete {path.parent.parent} to begin anew"
    told = read_json(path, remedy)
    done, sizes = told.get("texts", -1), told.get("sizes", [])
    whole = isinstance(done, int) and done <= texts and isinstance(sizes, list) and len(sizes) == width
    if not whole or not all(isinstance(size, float) and size > 0 for size in sizes):
        raise ValueError(f"{path} is damaged; {remedy}")
    return int(done), np.array(sizes, np.float32)


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ValueError(
            f"{folder}: the target's states of these texts take {needed / 1e9:.1f} GB, the disk has "
            f"{free / 1e9:.1f} GB free; make room, or give fewer texts"
        )


def _take_room(path: Path, size: int, begun: bool) -> None:
    """Give a file its size and its room on the disk: the system kills who writes to a map of a full one."""
    if begun and (not path.is_file() or path.stat().st_size != size):
        raise ValueError(f"{path} is damaged or missing; delete {path.parent.parent} to begin anew")
    with path.open("r+b" if begun else "wb") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            raise ValueError(
                f"{path} takes {size / 1e9:.1f} GB ({error.strerror}); make room, or give fewer texts"
            ) from error


def _sizes(states: NDArray[np.float32], hidden_sizes: Sequence[int]) -> NDArray[np.float32]:
    """Root mean square of every boundary's states, once for each of its numbers.

    Boundaries differ in size by orders of magnitude; in these units f16 holds all of them. The head's norms
    take the units out again.
    """
    parts = np.split(states, np.cumsum(hidden_sizes)[:-1], 1)
    return np.concatenate([np.full(part.shape[1], np.sqrt((part**2).mean()), np.float32) for part in parts])
