"""The folder behind a model that is given to Python's interface."""

from __future__ import annotations

import warnings
from pathlib import Path

from ovspec_models.sources import model_folder


def given_model(model: str | Path) -> Path:
    """As `ovspec_models.sources.model_folder`; what the user should know of a file is a Python warning."""
    return model_folder(model, warn=lambda line: warnings.warn(line, stacklevel=2))
