"""The draft model of a pipeline, by its folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ovspec.pipeline.models.given_model import given_model


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A draft model, as `draft_model` makes it."""

    models_path: Path
    device: str
    properties: dict[str, Any] = field(default_factory=dict)


def draft_model(models_path: str | Path, device: str = "", **properties: Any) -> DraftModel:
    """Describe the draft model of a pipeline.

    Args:
        models_path: folder with the IR of the draft model, or of a head for the target (e.g. EAGLE-3); or as
            `LLMPipeline` takes a model.
        device: its device; empty: that of the pipeline.
        properties: its OpenVINO properties; none: those of the pipeline.
    """
    return DraftModel(given_model(models_path), device, properties)
