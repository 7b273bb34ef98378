"""The vision of a folder, by its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ovspec.vision.gemma_vision import GemmaVision
from ovspec.vision.qwen_vision import Qwen2_5Vision, Qwen3Vision
from ovspec.vision.vision_model import VisionModel, part_of
from ovspec_models.folder.graph_files import text_embedding_of
from ovspec_models.folder.json_file import read_json

_AGAIN = "export the model again: `optimum-cli export openvino --task image-text-to-text`"
#: By `model_type`.
_KINDS: dict[str, type[VisionModel]] = {
    "qwen2_5_vl": Qwen2_5Vision,
    "qwen3_vl": Qwen3Vision,
    "qwen3_5": Qwen3Vision,
    "gemma3": GemmaVision,
}


def vision_kind(folder: Path) -> type[VisionModel]:
    """Which class reads the pictures of a folder.

    Raises:
        ValueError: a text model, one of a type whose pictures are not read, or a part is missing.
    """
    kind = read_json(folder / "config.json", _AGAIN).get("model_type")
    if text_embedding_of(folder) is None:
        raise ValueError(
            f"{folder}: is a text model (model_type {kind!r}), which reads no pictures; give a folder that "
            "optimum-cli exported with `--task image-text-to-text`, or text alone"
        )
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(
            f"{folder}: pictures of models of type {kind!r} are not read; those of {', '.join(_KINDS)} are"
        )
    for name in _KINDS[kind].parts:
        for file in (part_of(folder, name), part_of(folder, name).with_suffix(".bin")):
            if not file.is_file():
                raise ValueError(f"{folder} has no {file.name}, which reads pictures; {_AGAIN}")
    return _KINDS[kind]


def read_vision(folder: Path, device: str, properties: Mapping[str, object]) -> VisionModel:
    """The parts of a folder that read pictures, compiled.

    Raises:
        ValueError: as `vision_kind`, or a part that can't be read.
    """
    kind = vision_kind(folder)
    return kind(folder, read_json(folder / "config.json", _AGAIN), device, properties)
