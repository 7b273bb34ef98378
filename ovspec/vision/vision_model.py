"""The parts of a folder that read pictures: one class for each form of them."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.devices.devices import openvino_core
from ovspec.errors import InvalidValueError
from ovspec.graphs.compile import read_ir
from ovspec.memory.machine_memory import available_bytes
from ovspec.vision.pictures import Pixels
from ovspec.vision.preprocessor import Preprocessor
from ovspec_models.folder.shown import shown

Config = Mapping[str, Any]
#: What is planned for reading a picture, one at a time: of 4,096 patches two masks and scores of a head, and
#: activations. A larger one is read where memory is free.
READ_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class Encoded:
    """One picture as a model reads it.

    Attributes:
        rows: f32 `[rows, hidden size]`.
        grid: height and width of the picture in rows.
        digest: of what they were made of.
        deep: f32 `[layers, rows, hidden size]`, what is added to them behind the first layers of the language
            model; `None`: nothing.
    """

    rows: NDArray[np.float32]
    grid: tuple[int, int]
    digest: bytes
    deep: NDArray[np.float32] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes."""
        return self.rows.nbytes + (0 if self.deep is None else self.deep.nbytes)

    @property
    def keys(self) -> NDArray[np.int64]:
        """Numbers i64 `[rows]` that only the same rows of an equal picture have."""
        return np.frombuffer(hashlib.shake_256(self.digest).digest(8 * len(self.rows)), np.int64)


class VisionModel(ABC):
    """Makes rows of pictures.

    Args:
        folder: with the parts of the model.
        config: its config.json.
        device, properties: that the parts are compiled for.

    Attributes:
        parts: names of the graphs that it needs.
        tag: what stands for a picture in a prompt that a user writes.
        text: what stands for it where the model reads it, with one token that stands for its rows.
        pad_id: that token.
        window: tokens within which pictures are served whose rows see each other; 0: they do not.
    """

    parts: ClassVar[tuple[str, ...]]
    tag: ClassVar[str]
    text: ClassVar[str]
    pad_id: int
    window: int = 0

    def __init__(self, folder: Path, config: Config, device: str, properties: Mapping[str, object]) -> None:
        self.folder, self.config = folder, config
        self.preprocessor = Preprocessor.read(folder)
        self._requests = {name: compiled_part(folder, name, device, properties) for name in self.parts}

    @abstractmethod
    def encode(self, picture: Pixels) -> Encoded:
        """Rows of a picture.

        Raises:
            InvalidValueError: it is too narrow or too large.
        """

    def positions(
        self, length: int, places: Sequence[int], pictures: Sequence[Encoded]
    ) -> NDArray[np.int64] | None:
        """Positions i64 `[axes, tokens]` of a prompt of so many tokens; `None`: those that texts have.

        Args:
            places: where the rows of each picture begin.
        """
        return None

    def infer(self, part: str, inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[np.float32]]:
        """What a part makes of its inputs: all of its outputs."""
        request = self._requests[part]
        names = {name for port in request.model_inputs for name in port.get_names()}
        request.infer({name: value for name, value in inputs.items() if name in names})
        outputs = range(len(request.model_outputs))
        return [np.array(request.get_output_tensor(index).data, np.float32) for index in outputs]

    def number(self, section: str, name: str, least: int = 0) -> int:
        """A number of config.json, at least `least`.

        Raises:
            ValueError: it is none.
        """
        return number_of(self.config, self.folder, section, name, least)

    def check_size(self, said: int, where: str, name: str) -> None:
        """Refuse a size of the preprocessor that is not the one of `vision_config`, where this says it.

        Raises:
            ValueError: it says what both are.
        """
        section = self.config.get("vision_config")
        expected = section.get(name) if isinstance(section, dict) else None
        if expected is not None and expected != said:
            raise ValueError(
                f"{self.preprocessor.path}: {where} is {said}, but {name} of vision_config in config.json is "
                f"{shown(expected)}; copy both from the checkpoint"
            )


def part_of(folder: Path, name: str) -> Path:
    """The graph of a part."""
    return folder / f"openvino_{name}_model.xml"


def compiled_part(folder: Path, name: str, device: str, properties: Mapping[str, object]) -> ov.InferRequest:
    """A part, compiled.

    Raises:
        ValueError: it can't be read.
    """
    core = openvino_core()
    graph = read_ir(core, part_of(folder, name))
    return core.compile_model(graph, device, dict(properties)).create_infer_request()


def number_of(config: Config, folder: Path, section: str, name: str, least: int = 0) -> int:
    """A number of a section of config.json, or of its top, at least `least`.

    Raises:
        ValueError: it is none.
    """
    inner = config.get(section) if section else config
    value = inner.get(name) if isinstance(inner, dict) else None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
        where = f"{section}.{name}" if section else name
        raise ValueError(
            f"{folder / 'config.json'}: {where} is {shown(value)}, expected a number of at least {least}; "
            "restore the file, or export the model again"
        )
    return value


def check_memory(picture: Pixels, patches: int, needed: int) -> None:
    """Refuse a picture whose parts do not fit in memory.

    Raises:
        InvalidValueError: it is too large.
    """
    if needed > (free := available_bytes()):
        height, width = picture.shape[:2]
        raise InvalidValueError(
            f"picture: {width} x {height} pixels become {patches} patches, whose attention takes "
            f"{needed / 1e9:,.1f} GB, {free / 1e9:,.1f} GB are free; give a smaller one, or a smaller "
            "max_pixels in preprocessor_config.json"
        )
