"""Families that optimum-intel 2.1 refuses with newer transformers although their exports are correct."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

from ovspec_models.export.hybrid_export import hybrid_exported
from ovspec_models.folder.model_types import known_type
from ovspec_models.folder.private_names import misfit

_CONFIGS = "optimum.exporters.openvino.model_configs"
_INPUTS = "optimum.exporters.openvino.input_generators"
_PATCHER = "optimum.exporters.openvino.model_patcher"
_LLAMA4_ATTENTION = "llama4_attn_forward"
_GEMMA4_PAST = "Gemma4DummyPastKeyValuesGenerator"
# By model_type. The family tests compare their exports with transformers itself, for the version below; past
# that, optimum-intel's refusal stands.
_CAPPED = {
    "gemma": "GemmaOpenVINOConfig",
    "gemma2": "GemmaOpenVINOConfig",
    "gemma3_text": "GemmaOpenVINOConfig",
    "gemma3n_text": "GemmaOpenVINOConfig",
    "gemma4_text": "GemmaOpenVINOConfig",
    "glm": "GLMOpenVINOConfig",
    "llama4_text": "Llama4TextOpenVINOConfig",
}
_TESTED_TRANSFORMERS = "5.5.4"


@contextmanager
def lifted_caps(model_type: str) -> Iterator[None]:
    """Within this context, optimum-intel exports these families.

    A release without that cap says itself what it refuses. `model_type` is that of the text model.
    """
    name = _CAPPED.get(model_type)
    with ExitStack() as stack:
        stack.enter_context(hybrid_exported(model_type, _TESTED_TRANSFORMERS))
        stack.enter_context(known_type(model_type, _TESTED_TRANSFORMERS))
        if name is not None and not misfit(_CONFIGS, [f"{name}.MAX_TRANSFORMERS_VERSION"]):
            config = getattr(import_module(_CONFIGS), name)
            stack.enter_context(patch.object(config, "MAX_TRANSFORMERS_VERSION", _TESTED_TRANSFORMERS))
        if model_type == "gemma4_text" and not misfit(_INPUTS, [f"{_GEMMA4_PAST}.generate"]):
            stack.enter_context(_short_gemma4_past())
        if model_type == "llama4_text" and not misfit(_PATCHER, [_LLAMA4_ATTENTION]):
            stack.enter_context(_counted_llama4())
        yield


@contextmanager
def _short_gemma4_past() -> Iterator[None]:
    """Trace Gemma 4 with one length of past for all layers, as its text model masks them, and as Gemma 3n's.

    optimum-intel gives layers with a window a past of the whole window, which the tracing refuses.
    """
    generator = getattr(import_module(_INPUTS), _GEMMA4_PAST)
    generate = generator.generate

    def short(self: Any, *args: Any, **options: Any) -> Any:
        self.sliding_window = self.sequence_length
        return generate(self, *args, **options)

    with patch.object(generator, "generate", short):
        yield


@contextmanager
def _counted_llama4() -> Iterator[None]:
    """Give Llama 4's attention the positions that transformers passes on no more."""
    patcher = import_module(_PATCHER)
    forward = getattr(patcher, _LLAMA4_ATTENTION)

    def counted(
        self: Any, hidden_states: Any, *given: Any, past_key_values: Any = None, **options: Any
    ) -> Any:
        import torch

        if options.get("cache_position") is None:
            past = 0 if past_key_values is None else past_key_values.get_seq_length(self.layer_idx)
            options["cache_position"] = torch.arange(hidden_states.shape[1]) + past
        return forward(self, hidden_states, *given, past_key_values=past_key_values, **options)

    with patch.object(patcher, _LLAMA4_ATTENTION, counted):
        yield
