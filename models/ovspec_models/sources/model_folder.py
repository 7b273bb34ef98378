"""The folder of OpenVINO IR behind a model that is given as a folder, a GGUF file, or a name on a hub."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ovspec_models.folder.files import at_home
from ovspec_models.sources.gguf_file import is_gguf
from ovspec_models.sources.gguf_folder import gguf_folder
from ovspec_models.sources.hub import HubName, fetch


def model_folder(
    model: str | Path,
    report: Callable[[str], None] = lambda line: None,
    warn: Callable[[str], None] = lambda line: None,
) -> Path:
    """The folder of a model: `model` itself, or what is made of a GGUF file or fetched by its name.

    Whether a folder holds a model is not asked. A `Path` is never a name on a hub.

    Args:
        model: a folder, a GGUF file, or a name such as "OpenVINO/Qwen3-8B-int4-ov", "owner/name@revision" and
            "owner/name:file.gguf".
        report: called with what is done, before it is.
        warn: called with what the user should know of a file.

    Raises:
        ValueError: the file can't be read, or the name not be had; the message says why.
        RuntimeError: openvino_genai could not read the file.
    """
    path = at_home(model) if isinstance(model, str) else model
    name = None if path.exists() else HubName.of(model)
    if name is not None:
        path = fetch(name, report)
    return gguf_folder(path, report, warn) if is_gguf(path) else path


def model_name(folder: Path) -> str:
    """What a model's folder is called: its name, or that on the hub which it was fetched from."""
    folder = Path(os.path.realpath(folder))  # where links go in a circle, resolve() raises
    if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--"):
        return folder.parent.parent.name.removeprefix("models--").replace("--", "/")
    return folder.name
