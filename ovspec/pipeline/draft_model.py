"""Naming a pipeline's draft model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A draft model, as `draft_model` makes it."""

    models_path: Path
    device: str
    properties: dict[str, Any] = field(default_factory=dict)


def draft_model(models_path: str | Path, device: str = "", **properties: Any) -> DraftModel:
    """Name the draft model of a pipeline.

    Args:
        models_path: folder with its IR.
        device: its device; empty takes the pipeline's.
        properties: its OpenVINO properties; none takes the pipeline's.
    """
    return DraftModel(Path(models_path), device, properties)
