"""Qwen3.5's text models, for optimum-intel: out of checkpoints with images, and with newer transformers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from ovspec_models.private_names import misfit

_MODELING = "transformers.models.qwen3_5.modeling_qwen3_5"
_CONFIGS = "optimum.exporters.openvino.model_configs"


class _Layers:
    """What optimum-intel's cache takes of `Qwen3_5DynamicCache` of transformers 5.2: which layer is what."""

    is_compileable = False

    def __init__(self, config: Any) -> None:
        types: Sequence[str] = config.layer_types
        self.layer_types = types
        self.transformer_layers = [i for i, kind in enumerate(types) if kind == "full_attention"]
        self.last_linear_layer = max(i for i, kind in enumerate(types) if kind == "linear_attention")

    def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[Any, int]:
        """Keys that a mask is made for, and the first of them; the subclass knows `get_seq_length`."""
        return self.get_seq_length(layer_idx) + query_length, 0  # type: ignore[attr-defined]


@contextmanager
def qwen35_exported(tested_transformers: str) -> Iterator[None]:
    """Within this context, optimum-intel exports Qwen3.5's text models with transformers up to a version.

    A release of either that fits without help is left alone.
    """
    with ExitStack() as stack:
        if not misfit("optimum.exporters.tasks", ["TasksManager._SUPPORTED_MODEL_TYPE"]):
            stack.enter_context(_text_parts_exported())
        needed = misfit(_MODELING, ["Qwen3_5DynamicCache"])
        known = [
            misfit(_CONFIGS, ["Qwen3_5TextOpenVINOConfig.MAX_TRANSFORMERS_VERSION"]),
            misfit(_MODELING, ["Qwen3_5TextModel._update_linear_attn_mask"]),
        ]
        if needed and not any(known):
            stack.enter_context(_patched(tested_transformers))
        yield


@contextmanager
def _text_parts_exported() -> Iterator[None]:
    """Export a checkpoint with images as the text model that transformers loads of it."""
    from optimum.exporters import openvino  # noqa: F401  (registers the models)
    from optimum.exporters.tasks import TasksManager

    known = TasksManager._SUPPORTED_MODEL_TYPE
    if not {"qwen3_5", "qwen3_5_text"} <= set(known):
        yield
        return
    with patch.dict(known, qwen3_5=known["qwen3_5_text"]):
        yield


@contextmanager
def _patched(tested_transformers: str) -> Iterator[None]:
    """Give optimum-intel's patch of the model the class that transformers 5.5 has no more.

    It also expects caches that answer as those of 5.2.
    """
    from optimum.exporters.openvino.model_configs import Qwen3_5TextOpenVINOConfig
    from transformers.models.qwen3_5 import modeling_qwen3_5

    def unmasked(self: Any, attention_mask: Any, past_key_values: Any) -> None:
        """As 5.2 traces it: a text with tokens before it is masked nowhere in layers of linear attention."""

    with (
        patch.object(modeling_qwen3_5, "Qwen3_5DynamicCache", _Layers, create=True),
        patch.multiple(Qwen3_5TextOpenVINOConfig, MAX_TRANSFORMERS_VERSION=tested_transformers),
        patch.multiple(modeling_qwen3_5.Qwen3_5TextModel, _update_linear_attn_mask=unmasked),
    ):
        yield
