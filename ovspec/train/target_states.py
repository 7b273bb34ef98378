"""What the target says of texts, computed once and kept on disk: states, its likeliest tokens, its choice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovspec.train.target_passes import Reading, TargetPasses
from ovspec.train.texts import Text

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


class TargetStates:
    """What the target says of texts, in a folder.

    Args:
        folder: is made, or goes on being filled.
        texts: i64 `[tokens]` each; `self[n]` is what the target says of text n.
        vocabulary: tokens of the draft vocabulary.
        width: of all boundaries' states of a token.
    """

    def __init__(self, folder: Path, texts: Sequence[Text], vocabulary: int, width: int) -> None:
        self._folder, self._texts = folder, texts
        self._ends = np.cumsum([len(text) for text in texts])
        kept = min(KEPT_TOKENS, vocabulary)
        self._forms = {
            "states": (np.float16, width),
            "likely": (np.int32, kept),
            "shares": (np.float16, kept),
            "best": (np.int32, 1),
        }
        self._arrays: dict[str, NDArray[Any]] = {}
        self.sizes: NDArray[np.float32] = np.ones(width, np.float32)

    @property
    def bytes(self) -> int:
        """On disk, once all is read."""
        return int(self._ends[-1]) * sum(
            np.dtype(form).itemsize * width for form, width in self._forms.values()
        )

    def fill(self, passes: TargetPasses, ids: NDArray[np.int64], boundaries: int) -> Iterator[int]:
        """Read the texts that are not read yet, `ids` are the draft's vocabulary; yields tokens read so far.

        Raises:
            ValueError: the disk has no room for them.
        """
        progress = self._folder / "progress.json"
        self._folder.mkdir(parents=True, exist_ok=True)
        done = 0
        if progress.is_file():
            told = json.loads(progress.read_text())
            done, self.sizes = told["texts"], np.array(told["sizes"], np.float32)
        else:
            self._check_room()
            (first,) = passes.read(self._texts[:1], ids)
            self.sizes = _sizes(first.states, boundaries)
        mode: Any = "r+" if done else "w+"
        total = int(self._ends[-1])
        self._arrays = {
            name: np.memmap(self._folder / name, form, mode, shape=(total, width))
            for name, (form, width) in self._forms.items()
        }
        for begin in range(done, len(self._texts), _SAVE_TEXTS):
            part = range(begin, min(begin + _SAVE_TEXTS, len(self._texts)))
            for number, reading in zip(part, passes.read([self._texts[n] for n in part], ids), strict=True):
                self._keep(number, reading)
            progress.write_text(json.dumps({"texts": part.stop, "sizes": self.sizes.tolist()}))
            yield int(self._ends[part.stop - 1])

    def __getitem__(self, number: int) -> Known:
        end = int(self._ends[number])
        rows = slice(end - len(self._texts[number]), end)
        part = {name: np.asarray(array[rows]) for name, array in self._arrays.items()}
        return Known(part["states"], part["likely"], part["shares"], part["best"][:, 0])

    def _keep(self, number: int, reading: Reading) -> None:
        known = self[number]
        known.states[:] = reading.states / self.sizes
        count = known.likely.shape[1]
        known.likely[:] = np.argpartition(reading.logits, -count, -1)[:, -count:]
        likely = np.take_along_axis(reading.logits, known.likely, -1)
        weights = np.exp(likely - likely.max(-1, keepdims=True))
        known.shares[:] = weights / weights.sum(-1, keepdims=True)
        known.best[:] = reading.best

    def _check_room(self) -> None:
        free = shutil.disk_usage(self._folder).free
        if self.bytes > free:
            raise ValueError(
                f"{self._folder}: the target's states of these texts take {self.bytes / 1e9:.1f} GB, the "
                f"disk has {free / 1e9:.1f} GB free; make room, or give fewer texts"
            )


def _sizes(states: NDArray[np.float32], boundaries: int) -> NDArray[np.float32]:
    """Root mean square of every boundary's states, once for each of its numbers.

    Boundaries differ in size by orders of magnitude; so f16 holds all of them, and a head begins with
    features of size 1.
    """
    parts = np.split(states, boundaries, 1)
    return np.concatenate([np.full(part.shape[1], np.sqrt((part**2).mean()), np.float32) for part in parts])
