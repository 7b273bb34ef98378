"""What pictures bring to a prompt: rows in the place of some tokens', and positions of several axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class VisualPrompt:
    """The visual part of a prompt.

    Attributes:
        places: i64 `[given]`, the tokens of the prompt that pictures stand for, ascending.
        rows: f32 `[given, hidden size]`, what the model reads in their place.
        keys: i64 `[given]`, numbers that say which part of which picture each row is.
        positions: i64 `[axes, tokens of the prompt]`; `None`: those that texts have.
        deep: f32 `[layers, given, hidden size]`, what is added to the given rows behind the first layers.
        runs: of pictures whose rows see each other: their first token, and the one behind the last.
    """

    places: NDArray[np.int64]
    rows: NDArray[np.float32]
    keys: NDArray[np.int64]
    positions: NDArray[np.int64] | None = None
    runs: tuple[tuple[int, int], ...] = ()
    deep: NDArray[np.float32] | None = None

    def between(self, begin: int, end: int) -> slice:
        """Which of the given rows stand for tokens `begin` .. `end - 1`."""
        first, last = np.searchsorted(self.places, (begin, end))
        return slice(int(first), int(last))

    def whole(self, begin: int, end: int) -> int:
        """Where a pass over tokens `begin` .. `end - 1` may end: before a picture of `runs`, or behind it."""
        for first, last in self.runs:
            if first < end < last:
                return first if first > begin else last
        return end

    def positions_of(self, places: NDArray[np.int64], axes: int) -> NDArray[np.int64]:
        """Positions i64 `[axes, places]` of tokens of the prompt and behind it."""
        if self.positions is None:
            return np.tile(places, (axes, 1))
        length = self.positions.shape[1]
        behind = int(self.positions.max()) + 1 - length
        known = self.positions[:, np.minimum(places, length - 1)]
        found = np.where(places < length, known, places + behind)
        # Some graphs read the place in the text before the axes of pictures.
        return np.concatenate([np.tile(places, (axes - len(found), 1)), found])

    def text_of(self, tokens: Sequence[int]) -> list[int]:
        """The tokens of a prompt, and what is behind it, without those that pictures stand for."""
        text: list[int] = np.delete(np.array(tokens, np.int64), self.places).tolist()
        return text

    def keyed(self, tokens: Sequence[int]) -> list[int]:
        """The tokens with the keys of pictures in their place, so that only equal pictures are alike."""
        named = np.array(tokens, np.int64)
        own = self.between(0, len(named))
        named[self.places[own]] = self.keys[own]
        keyed: list[int] = named.tolist()
        return keyed
