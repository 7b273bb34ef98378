"""Families that optimum-intel 2.1 refuses with newer transformers although their exports are correct."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from unittest.mock import patch

from ovspec_models.hybrid_export import hybrid_exported
from ovspec_models.private_names import misfit

_CONFIGS = "optimum.exporters.openvino.model_configs"
# By model_type. The family tests compare their exports with transformers itself, for the version below; past
# that, optimum-intel's refusal stands.
_CAPPED = {
    "gemma": "GemmaOpenVINOConfig",
    "gemma2": "GemmaOpenVINOConfig",
    "gemma3_text": "GemmaOpenVINOConfig",
    "glm": "GLMOpenVINOConfig",
    "glm4": "GLMOpenVINOConfig",
}
_TESTED_TRANSFORMERS = "5.5.4"


@contextmanager
def lifted_caps(model_type: str) -> Iterator[None]:
    """Within this context, optimum-intel exports these families.

    A release without that cap says itself what it refuses. `model_type` is that of the text model.
    """
    name = _CAPPED.get(model_type, "GemmaOpenVINOConfig")
    with ExitStack() as stack:
        stack.enter_context(hybrid_exported(model_type, _TESTED_TRANSFORMERS))
        if not misfit(_CONFIGS, [f"{name}.MAX_TRANSFORMERS_VERSION"]):
            config = getattr(import_module(_CONFIGS), name)
            stack.enter_context(patch.object(config, "MAX_TRANSFORMERS_VERSION", _TESTED_TRANSFORMERS))
        yield
