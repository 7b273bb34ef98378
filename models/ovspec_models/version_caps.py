"""Families that optimum-intel 2.1 refuses with newer transformers although their exports are correct."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from ovspec_models.private_names import misfit
from ovspec_models.qwen35_export import qwen35_exported

# Its cap for Gemma, Gemma 2 and the text part of Gemma 3 is transformers 5.0, for Qwen3.5 5.2. The family
# tests compare their exports with transformers itself, for the version below; past that, its refusal stands.
_TESTED_TRANSFORMERS = "5.5.4"


@contextmanager
def lifted_caps(model_type: str) -> Iterator[None]:
    """Within this context, optimum-intel exports these families.

    A release without that cap says itself what it refuses. `model_type` is that of the text model.
    """
    if model_type == "qwen3_5_text":
        with qwen35_exported(_TESTED_TRANSFORMERS):
            yield
        return
    if misfit("optimum.exporters.openvino.model_configs", ["GemmaOpenVINOConfig.MAX_TRANSFORMERS_VERSION"]):
        yield
        return
    from optimum.exporters.openvino.model_configs import GemmaOpenVINOConfig

    with patch.multiple(GemmaOpenVINOConfig, MAX_TRANSFORMERS_VERSION=_TESTED_TRANSFORMERS):
        yield
