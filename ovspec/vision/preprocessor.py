"""What a folder says of how its pictures are resized and their colours scaled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovspec.vision.pictures import Pixels, pillow
from ovspec_models.folder.json_file import read_json
from ovspec_models.folder.shown import shown

_NAMES = ("preprocessor_config.json", "processor_config.json")
_REMEDY = "copy it from the checkpoint, or export the model again"
_BILINEAR, _BICUBIC = 2, 3
_STEPS = ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb")
_FILTERS = (_BILINEAR, _BICUBIC)


@dataclass(frozen=True, slots=True)
class Preprocessor:
    """How pictures are made ready for a model.

    Attributes:
        path: the file that says it.
        values: its fields.
    """

    path: Path
    values: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Preprocessor:
        """Read `preprocessor_config.json`, or the file that transformers writes from version 5 on.

        Raises:
            ValueError: there is neither, or it can't be read.
        """
        path = next((folder / name for name in _NAMES if (folder / name).is_file()), None)
        if path is None:
            raise ValueError(f"{folder} has no {_NAMES[0]}, which says how pictures are resized: {_REMEDY}")
        values = read_json(path, _REMEDY)
        nested = values.get("image_processor")
        found = cls(path, nested if isinstance(nested, dict) else values)
        found._check()
        return found

    def _check(self) -> None:
        """Refuse what would be another way to read pictures."""
        for name in _STEPS:
            if (value := self.values.get(name)) not in (None, True):
                raise ValueError(f"{self.path}: {name} is {shown(value)}, only true is supported; {_REMEDY}")
        factor = self.values.get("rescale_factor", 1 / 255)
        if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor < 1e9:
            raise ValueError(
                f"{self.path}: rescale_factor is {shown(factor)}, expected a positive number; {_REMEDY}"
            )

    def count(self, name: str, default: int) -> int:
        """A positive number.

        Raises:
            ValueError: it is none.
        """
        value = self.values.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
            raise ValueError(f"{self.path}: {name} is {shown(value)}, expected a positive integer; {_REMEDY}")
        return value

    def side(self, name: str) -> int:
        """Height or width of pictures of one size.

        Raises:
            ValueError: it is no positive number.
        """
        size = self.values.get("size")
        value = size.get(name) if isinstance(size, dict) else None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**15:
            raise ValueError(f"{self.path}: size is {shown(size)}, expected height and width; {_REMEDY}")
        return value

    def colours(self, name: str, default: tuple[float, ...]) -> NDArray[np.float32]:
        """A number for each of red, green and blue, f32 `[3]`.

        Raises:
            ValueError: these are others.
        """
        value = self.values.get(name, default)
        numbers = value if isinstance(value, (list, tuple)) else ()
        good = all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in numbers)
        if len(numbers) != 3 or not good or (name == "image_std" and not all(one > 0 for one in numbers)):
            raise ValueError(f"{self.path}: {name} is {shown(value)}, expected three numbers; {_REMEDY}")
        return np.array(numbers, np.float32)

    @property
    def filter(self) -> int:
        """The filter that pictures are resized with, by Pillow's numbers.

        Raises:
            ValueError: another than bilinear and bicubic.
        """
        value = self.values.get("resample", _BICUBIC)
        if value not in _FILTERS:
            raise ValueError(f"{self.path}: resample is {shown(value)}, expected 2 or 3; {_REMEDY}")
        return int(value)

    def scaled(self, pixels: Pixels) -> NDArray[np.float32]:
        """Colours as the model reads them, f32 `[3, height, width]`."""
        factor = np.float32(self.values.get("rescale_factor", 1 / 255))
        mean, std = (self.colours(name, (0.5,) * 3) for name in ("image_mean", "image_std"))
        rescaled = pixels.transpose(2, 0, 1).astype(np.float32) * factor
        found: NDArray[np.float32] = (rescaled - mean[:, None, None]) / std[:, None, None]
        return found


def resized(pixels: Pixels, width: int, height: int, resample: int) -> Pixels:
    """The picture in another size, as Pillow makes it.

    Raises:
        InvalidValueError: Pillow is not there.
    """
    if pixels.shape[:2] == (height, width):
        return pixels
    return np.asarray(pillow().fromarray(pixels).resize((width, height), resample))
