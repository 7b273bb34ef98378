"""The folder behind a model that is given to Python's interface."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from ovspec.errors import InvalidTypeError
from ovspec_models.sources import model_folder


def given_model(model: str | Path) -> Path:
    """As `ovspec_models.sources.model_folder`; what the user should know of a file is a Python warning.

    Raises:
        InvalidTypeError: it is neither text nor a path.
    """
    if not isinstance(model, str | os.PathLike):
        kind = type(model).__name__
        raise InvalidTypeError(
            f"models_path: expected the path of a folder or GGUF file, or a hub id, got {kind}"
        )
    return model_folder(model, warn=lambda line: warnings.warn(line, stacklevel=2))
