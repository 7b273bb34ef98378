"""Cache key of a compiled model, and the identity by which an entry is known to be outdated."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path

import openvino as ov

import ovspec_models
import ovspec_ops
import ovspec_transforms
from ovspec.devices.devices import processor
from ovspec.devices.properties import precision_name
from ovspec.graphs.checksums import checksum
from ovspec_models import ModelInfo
from ovspec_models.folder.graph_files import graphs_of, weights_of

_CONFIGS = ("config.json", "ovspec_config.json")


def entry_name(folder: Path, device: str, choices: Mapping[str, object]) -> str:
    """Name of the entry of one model with one set of choices on this processor.

    Args:
        choices: everything that the compiled model depends on beside the model: what chooses the transforms,
            and OpenVINO properties.
    """
    asked = {
        "folder": str(folder.resolve()),
        "device": device,
        "processor": processor(device),
        "choices": choices,
    }
    text = json.dumps(asked, sort_keys=True, default=precision_name)
    return f"ovspec-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def identity(folder: Path) -> dict[str, str]:
    """Identity of the model in a folder and of the code that compiles it.

    Returns:
        One text per part, by its name. An entry with another text in any part is outdated.

    Raises:
        ValueError: the folder holds no model.
    """
    ModelInfo.read(folder)
    graphs = graphs_of(folder)
    return {
        "graph": " ".join(hashlib.sha256(graph.read_bytes()).hexdigest() for graph in graphs),
        "weights": " ".join(checksum(weights_of(graph)) for graph in graphs),
        "configuration": _digest(folder / name for name in _CONFIGS),
        "ovspec": _code(),
        "OpenVINO": ov.get_version(),
        "native library": _state(ovspec_ops.extension_path()),
    }


@functools.cache
def _code() -> str:
    """Version and state of the code as it was installed when this process asked first.

    With an editable install the code changes without the version.
    """
    own = str(Path(__file__).parents[1])  # the package ovspec; importing it here would be circular
    folders = [own, *ovspec_models.__path__, *ovspec_transforms.__path__, *ovspec_ops.__path__]
    paths = [path for folder in folders for path in sorted(Path(folder).rglob("*.py"))]
    state = "".join(f"{path.name} {_state(path)}" for path in paths)
    return f"{version('ovspec')} {hashlib.sha256(state.encode()).hexdigest()}"


def _state(path: Path) -> str:
    if not path.is_file():
        return "none"
    stat = path.stat()
    return f"{stat.st_size} {stat.st_mtime_ns}"


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes() if path.is_file() else b"none")
    return digest.hexdigest()
