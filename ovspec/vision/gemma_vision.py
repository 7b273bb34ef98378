"""Gemma 3's way to read pictures: each in one size, as so many rows, which see each other."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ovspec.vision.pictures import Pixels
from ovspec.vision.preprocessor import resized
from ovspec.vision.vision_model import Config, Encoded, VisionModel, number_of


class GemmaVision(VisionModel):
    """Gemma 3."""

    parts = ("vision_embeddings",)
    tag = "<start_of_image>"
    text = "\n\n<start_of_image><image_soft_token><end_of_image>\n\n"

    def __init__(self, folder: Path, config: Config, device: str, properties: Mapping[str, object]) -> None:
        super().__init__(folder, config, device, properties)
        self.pad_id = self.number("", "image_token_index")
        if self.preprocessor.values.get("do_pan_and_scan"):
            raise ValueError(f"{self.preprocessor.path}: do_pan_and_scan is not supported; set it to false")
        self._height, self._width = (self.preprocessor.side(name) for name in ("height", "width"))
        for side in (self._height, self._width):
            self.check_size(side, "size", "image_size")
        # Rows of a picture see all of it. In layers with a window they are computed as its last one.
        self.window = number_of(config, folder, "text_config", "sliding_window") or 2**31

    def encode(self, picture: Pixels) -> Encoded:
        """Rows of a picture."""
        pixels = resized(picture, self._width, self._height, self.preprocessor.filter)
        (rows,) = self.infer("vision_embeddings", {"pixel_values": self.preprocessor.scaled(pixels)[None]})
        rows = rows.reshape(-1, rows.shape[-1])
        side = math.isqrt(len(rows))
        digest = hashlib.blake2b(pixels.tobytes(), digest_size=32).digest()
        return Encoded(np.ascontiguousarray(rows), (side, side), digest)
