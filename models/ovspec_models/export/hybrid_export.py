"""Models whose layers keep states beside keys and values, for optimum-intel with newer transformers.

optimum-intel 2.1 wraps the cache classes that transformers had for Qwen3.5 until 5.2, for Granite 4 until 5.3
and for LFM2 until 5.4. Where they are gone, a class takes their place that says which layer is what.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from unittest.mock import patch

from ovspec_models.export.granite_hybrid import scanned
from ovspec_models.folder.private_names import misfit

_CONFIGS = "optimum.exporters.openvino.model_configs"
_ATTENTION = ("full_attention", "attention")


@dataclass(frozen=True, slots=True)
class _Hybrid:
    """Names of a model in the export libraries.

    Attributes:
        module: its folder and file in transformers.
        cache: the class that is gone from that file.
        config: its class in optimum-intel.
        masks: the method that masks layers that keep a state; empty where there is none.
        experts: the class whose experts were a list and are tensors now; empty where none is.
    """

    module: str
    cache: str
    config: str
    masks: str = ""
    experts: str = ""

    @property
    def modeling(self) -> str:
        return f"transformers.models.{self.module}.modeling_{self.module}"


_LFM2 = _Hybrid("lfm2", "Lfm2HybridConvCache", "LFM2OpenVINOConfig")
_HYBRIDS = {
    "qwen3_5_text": _Hybrid(
        "qwen3_5",
        "Qwen3_5DynamicCache",
        "Qwen3_5TextOpenVINOConfig",
        "Qwen3_5TextModel._update_linear_attn_mask",
    ),
    "qwen3_next": _Hybrid(
        "qwen3_next",
        "Qwen3NextDynamicCache",
        "Qwen3NextOpenVINOConfig",
        "Qwen3NextModel._update_linear_attn_mask",
        "Qwen3NextSparseMoeBlock",
    ),
    "granitemoehybrid": _Hybrid(
        "granitemoehybrid",
        "HybridMambaAttentionDynamicCache",
        "GraniteMoeHybridOpenVINOConfig",
        "GraniteMoeHybridModel._update_mamba_mask",
    ),
    "lfm2": _LFM2,
    # Its patch begins with that of LFM2, which looks for LFM2's class.
    "lfm2_moe": _Hybrid(_LFM2.module, _LFM2.cache, "LFM2MoeOpenVINOConfig"),
}


class _Unpatched(type):
    """A class that makes objects of another, of which optimum-intel finds none to patch."""

    made: Any

    def __call__(cls, *args: Any, **options: Any) -> Any:
        return cls.made(*args, **options)

    def __instancecheck__(cls, instance: Any) -> bool:
        return False


class _Layers:
    """What optimum-intel's caches take of the class that is gone: which layer is what."""

    is_compileable = False

    def __init__(self, config: Any, **sizes: int) -> None:
        types: Sequence[str] = config.layer_types
        self.layer_types = self.layers_block_type = types
        self.transformer_layers = [i for i, kind in enumerate(types) if kind in _ATTENTION]
        self.first_attention_layer = self.transformer_layers[0]
        # Granite 4's types may have layers of attention alone.
        self.last_linear_layer = max(
            (i for i, kind in enumerate(types) if kind not in _ATTENTION), default=-1
        )

    def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[Any, int]:
        """Keys that a mask is made for, and the first of them; the subclass knows `get_seq_length`."""
        return self.get_seq_length(layer_idx) + query_length, 0  # type: ignore[attr-defined]


@contextmanager
def hybrid_exported(model_type: str, tested_transformers: str) -> Iterator[None]:
    """Within this context, optimum-intel exports these models with transformers up to a version.

    Other models, and a release of either that fits without help, are left alone.
    """
    hybrid = _HYBRIDS.get(model_type)
    with ExitStack() as stack:
        if model_type == "qwen3_5_text" and not misfit(
            "optimum.exporters.tasks", ["TasksManager._SUPPORTED_MODEL_TYPE"]
        ):
            stack.enter_context(_text_parts_exported())
        if hybrid is not None and not misfit(_CONFIGS, [f"{hybrid.config}.MAX_TRANSFORMERS_VERSION"]):
            config = getattr(import_module(_CONFIGS), hybrid.config)
            # optimum-intel 2.2 has no such limit for models that it exports without help.
            if config.MAX_TRANSFORMERS_VERSION:
                stack.enter_context(_helped(hybrid, config, tested_transformers))
        yield


@contextmanager
def _helped(hybrid: _Hybrid, config: Any, tested_transformers: str) -> Iterator[None]:
    """Export a model that optimum-intel 2.1 does not export right, or not with newer transformers."""
    with ExitStack() as stack:
        is_gone = misfit(hybrid.modeling, [hybrid.cache])
        if is_gone and not (hybrid.masks and misfit(hybrid.modeling, [hybrid.masks])):
            stack.enter_context(_patched(hybrid, config, tested_transformers))
        if hybrid.module == "granitemoehybrid":
            stack.enter_context(scanned(config))
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
def _patched(hybrid: _Hybrid, config: Any, tested_transformers: str) -> Iterator[None]:
    """Give optimum-intel's patch of the model the class that transformers has no more.

    It also expects caches that answer as those before.
    """
    modeling = import_module(hybrid.modeling)

    def unmasked(self: Any, attention_mask: Any, past_key_values: Any) -> None:
        """As before: a text with tokens before it is masked nowhere in layers of linear attention."""

    with ExitStack() as stack:
        stack.enter_context(patch.object(modeling, hybrid.cache, _Layers, create=True))
        stack.enter_context(patch.object(config, "MAX_TRANSFORMERS_VERSION", tested_transformers))
        if hybrid.masks:
            model, method = hybrid.masks.split(".")
            stack.enter_context(patch.object(getattr(modeling, model), method, unmasked))
        if hybrid.experts:
            whole = _Unpatched(hybrid.experts, (), {"made": getattr(modeling, hybrid.experts)})
            stack.enter_context(patch.object(modeling, hybrid.experts, whole))
        yield
