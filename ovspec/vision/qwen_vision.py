"""Qwen's way to read pictures: patches of any number, merged by fours, with positions of three axes."""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovspec.errors import InvalidValueError
from ovspec.vision.pictures import Pixels
from ovspec.vision.preprocessor import Preprocessor, resized
from ovspec.vision.vision_model import Config, Encoded, VisionModel, check_memory

_MOST_RATIO = 200
_AXES = 3
_THETA = 10_000.0


class QwenVision(VisionModel):
    """What Qwen's models have in common; each says what its layers read beside the patches."""

    tag = text = "<|vision_start|><|image_pad|><|vision_end|>"

    def __init__(self, folder: Path, config: Config, device: str, properties: Mapping[str, object]) -> None:
        super().__init__(folder, config, device, properties)
        self.pad_id = self.number("", "image_token_id")
        read = self.preprocessor
        self._patch, self._merge = read.count("patch_size", 14), read.count("merge_size", 2)
        self._times = read.count("temporal_patch_size", 2)
        self.check_size(self._patch, "patch_size", "patch_size")
        self.check_size(self._merge, "merge_size", "spatial_merge_size")
        self.check_size(self._times, "temporal_patch_size", "temporal_patch_size")
        self._least, self._most = _pixel_bounds(read)
        heads = self.number("vision_config", "num_heads", 1)
        quarter = self.number("vision_config", "hidden_size", 1) // heads // 4
        self._frequencies = _THETA ** (-np.arange(quarter, dtype=np.float32) / quarter)

    def encode(self, picture: Pixels) -> Encoded:
        """Rows of a picture."""
        unit = self._patch * self._merge
        height, width = resized_to(picture.shape[0], picture.shape[1], unit, self._least, self._most)
        rows, columns = height // self._patch, width // self._patch
        count = rows * columns
        check_memory(picture, count, 3 * 4 * count * count)  # two masks, and scores of a head
        pixels = resized(picture, width, height, self.preprocessor.filter)
        (hidden,) = self.infer("vision_embeddings", {"hidden_states": self.patches(pixels)})
        inputs: dict[str, NDArray[Any]] = {
            "hidden_states": hidden,
            "rotary_pos_emb": self._angles(rows, columns),
            "attention_mask": np.zeros((1, count, count), np.float32),
        }
        made = self.infer("vision_embeddings_merger", inputs | self.beside(hidden, rows, columns))
        grid = (rows // self._merge, columns // self._merge)
        digest = hashlib.blake2b(repr(grid).encode() + pixels.tobytes(), digest_size=32).digest()
        return Encoded(made[0], grid, digest, *made[1:])

    @abstractmethod
    def beside(self, hidden: NDArray[np.float32], rows: int, columns: int) -> dict[str, NDArray[Any]]:
        """What the layers of a model read in place of the common inputs, or beside them.

        Args:
            hidden: patches f32 `[patches, hidden size]`.
            rows, columns: of patches.
        """

    def patches(self, pixels: Pixels) -> NDArray[np.float32]:
        """Patches f32 `[patches, values]`, those that are merged one behind the other."""
        colours, merge, patch = self.preprocessor.scaled(pixels), self._merge, self._patch
        _, height, width = colours.shape
        shape = (3, height // patch // merge, merge, patch, width // patch // merge, merge, patch)
        ordered = colours.reshape(shape).transpose(1, 4, 2, 5, 0, 3, 6)
        repeated = np.repeat(ordered[:, :, :, :, :, None], self._times, 5)  # a picture is a film of one frame
        return np.ascontiguousarray(repeated).reshape(height // patch * (width // patch), -1)

    def positions(
        self, length: int, places: Sequence[int], pictures: Sequence[Encoded]
    ) -> NDArray[np.int64] | None:
        """Time, height and width of every token: a picture has one time, and takes as many as it is long."""
        found = np.empty((_AXES, length), np.int64)
        begin = position = 0
        for place, picture in zip((*places, length), (*pictures, None), strict=True):
            found[:, begin:place] = np.arange(place - begin) + position
            position += place - begin
            if picture is None:
                break
            height, width = picture.grid
            begin = place + height * width
            found[0, place:begin] = position
            found[1, place:begin] = position + np.repeat(np.arange(height), width)
            found[2, place:begin] = position + np.tile(np.arange(width), height)
            position += max(height, width)
        return found

    def _angles(self, rows: int, columns: int) -> NDArray[np.float32]:
        """Angles of the rotary embedding of every patch, by its row and column."""
        row = np.broadcast_to(np.arange(rows, dtype=np.float32)[:, None, None], (rows, columns, 1))
        column = np.broadcast_to(np.arange(columns, dtype=np.float32)[:, None], (rows, columns, 1))
        return np.concatenate([self._merged(axis) * self._frequencies for axis in (row, column)], 1)

    def _merged(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Values `[rows, columns, size]` in the order of the patches, `[patches, size]`."""
        rows, columns, size = values.shape
        merge = self._merge
        shape = (rows // merge, merge, columns // merge, merge, size)
        found: NDArray[np.float32] = values.reshape(shape).transpose(0, 2, 1, 3, 4).reshape(-1, size)
        return found


class Qwen2_5Vision(QwenVision):  # noqa: N801
    """Qwen2.5-VL: most layers of its vision part attend within windows."""

    parts = ("vision_embeddings", "vision_embeddings_merger")

    def __init__(self, folder: Path, config: Config, device: str, properties: Mapping[str, object]) -> None:
        super().__init__(folder, config, device, properties)
        unit = self._merge * self._patch
        self._side = self.number("vision_config", "window_size", unit) // unit

    def beside(self, hidden: NDArray[np.float32], rows: int, columns: int) -> dict[str, NDArray[Any]]:
        """Windows: their patches behind one another, and who sees whom."""
        grid = (rows // self._merge, columns // self._merge)
        order, window = windows(grid, self._side, self._merge**2)
        return {"window_index": order, "window_attention_mask": _mask_of(window)}


class Qwen3Vision(QwenVision):
    """Qwen3-VL: patches have positions that are learnt, and give rows to several layers."""

    parts = ("vision_embeddings", "vision_embeddings_merger", "vision_embeddings_pos")

    def __init__(self, folder: Path, config: Config, device: str, properties: Mapping[str, object]) -> None:
        super().__init__(folder, config, device, properties)
        self._side = math.isqrt(self.number("vision_config", "num_position_embeddings", 1))

    def beside(self, hidden: NDArray[np.float32], rows: int, columns: int) -> dict[str, NDArray[Any]]:
        """Patches with their positions: those of a grid of one size, between whose points they lie."""
        (low, high, part), (left, right, share) = (between(self._side, count) for count in (rows, columns))
        corners = [(low, left), (low, right), (high, left), (high, right)]
        places = np.stack([(row[:, None] * self._side + column).reshape(-1) for row, column in corners])
        weights = [
            (of_row[:, None] * of_column).reshape(-1, 1)
            for of_row in (1 - part, part)
            for of_column in (1 - share, share)
        ]
        (known,) = self.infer("vision_embeddings_pos", {"input": places})
        summed = sum((one * weight for one, weight in zip(known, weights, strict=True)), np.float32(0))
        return {"hidden_states": hidden + self._merged(summed.reshape(rows, columns, -1))}


def _pixel_bounds(read: Preprocessor) -> tuple[int, int]:
    """The fewest and the most pixels of a resized picture; newer files call them edges."""
    size = read.values.get("size")
    edges = size if isinstance(size, dict) else {}
    named = (("min_pixels", "shortest_edge", 56 * 56), ("max_pixels", "longest_edge", 28 * 28 * 1280))
    bounds = []
    for name, edge, default in named:
        found = edges.get(edge)
        bounds.append(read.count(name, found if isinstance(found, int) and found > 0 else default))
    if bounds[0] > bounds[1]:
        raise ValueError(
            f"{read.path}: pictures have at least {bounds[0]} and at most {bounds[1]} pixels; copy it "
            "from the checkpoint"
        )
    return bounds[0], bounds[1]


def resized_to(height: int, width: int, unit: int, least: int, most: int) -> tuple[int, int]:
    """Height and width as multiples of `unit`, with at least and at most so many pixels.

    Raises:
        InvalidValueError: a picture that is more than 200 times as long as it is wide.
    """
    if max(height, width) > _MOST_RATIO * min(height, width):
        raise InvalidValueError(
            f"picture: {width} x {height} pixels; one side may be {_MOST_RATIO} times the other, cut it"
        )
    rows, columns = (round(side / unit) * unit for side in (height, width))
    if rows * columns > most:
        factor = math.sqrt(height * width / most)
        rows, columns = (max(unit, math.floor(side / factor / unit) * unit) for side in (height, width))
    elif rows * columns < least:
        factor = math.sqrt(least / (height * width))
        rows, columns = (math.ceil(side * factor / unit) * unit for side in (height, width))
    return rows, columns


def windows(grid: tuple[int, int], side: int, unit: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Merged patches window by window, and the window of every patch in that order.

    Args:
        grid: height and width in merged patches.
        side: of a window in merged patches.
        unit: patches that are merged.
    """
    height, width = grid
    row, column = np.divmod(np.arange(height * width), width)
    window = row // side * -(-width // side) + column // side
    order = np.argsort(window, kind="stable")
    return order, np.repeat(window[order], unit)


def between(side: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Where so many points lie among those of a line of `side`: the ones before and behind, and the share."""
    points = np.linspace(0, side - 1, count, dtype=np.float32)
    before = points.astype(np.int64)
    return before, np.minimum(before + 1, side - 1), points - before.astype(np.float32)


def _mask_of(window: NDArray[np.int64]) -> NDArray[np.float32]:
    """0 where both patches lie in one window, else minus infinity, f32 `[1, patches, patches]`."""
    apart = window[:, None] != window
    mask = np.zeros(apart.shape, np.float32)
    mask[apart] = -np.inf
    return mask[None]
