"""Families that optimum-intel 2.1 refuses with newer transformers although their exports are correct."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ovspec_models.private_names import misfit, replaced

# Its cap for Gemma, Gemma 2 and the text part of Gemma 3 is transformers 5.0. The family tests compare
# their exports with transformers itself, for the version below; past that, optimum-intel's refusal stands.
_TESTED_TRANSFORMERS = "5.5.4"


@contextmanager
def lifted_caps() -> Iterator[None]:
    """Within this context, optimum-intel exports these families.

    A release without that cap says itself what it refuses.
    """
    if misfit("optimum.exporters.openvino.model_configs", ["GemmaOpenVINOConfig.MAX_TRANSFORMERS_VERSION"]):
        yield
        return
    from optimum.exporters.openvino.model_configs import GemmaOpenVINOConfig

    with replaced(GemmaOpenVINOConfig, MAX_TRANSFORMERS_VERSION=_TESTED_TRANSFORMERS):
        yield
