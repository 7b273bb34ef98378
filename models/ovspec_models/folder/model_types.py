"""Model types that ovspec teaches optimum-intel to export, as it knows no configuration for them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from ovspec_models.folder.private_names import misfit

_CONFIGS = "optimum.exporters.openvino.model_configs"
_PATCHER = "optimum.exporters.openvino.model_patcher"
_TASKS = "optimum.exporters.tasks"
_TASK = "text-generation-with-past"
_EXPERTS = "lfm2_moe_experts_forward"
_LLAMA = "LlamaOpenVINOConfig"
# By model_type, a class of optimum-intel for models with the same inputs and caches. `make sweep PART=6`
# compares each with transformers.
LIKE = {
    "apertus": _LLAMA,
    "code_llama": _LLAMA,
    "cwm": _LLAMA,
    "ernie4_5": _LLAMA,
    "jais2": _LLAMA,
    "ministral": _LLAMA,
    "ministral3": _LLAMA,
    "nanochat": _LLAMA,
    "olmo3": _LLAMA,
    "seed_oss": _LLAMA,
    "vaultgemma": _LLAMA,
    "dots1": _LLAMA,
    "ernie4_5_moe": _LLAMA,
    "exaone_moe": _LLAMA,
    "flex_olmo": _LLAMA,
    "glm4_moe": _LLAMA,
    "granitemoeshared": _LLAMA,
    "hunyuan_v1_moe": _LLAMA,
    "minimax_m2": _LLAMA,
    "olmoe": _LLAMA,
    "solar_open": _LLAMA,
}
# Their experts are a loop that can't be traced; optimum-intel has a form of it without one for its own types.
_LOOPED = ("gemma4_text", "qwen3_next", "granitemoe", "granitemoehybrid")


@contextmanager
def known_type(model_type: str, tested_transformers: str) -> Iterator[None]:
    """Within this context optimum-intel exports a model of this type, if ovspec knows how.

    Types that the installed release knows itself are left to it.
    """
    like = LIKE.get(model_type)
    with ExitStack() as stack:
        if like and not misfit(_TASKS, ["TasksManager._SUPPORTED_MODEL_TYPE"]):
            stack.enter_context(_registered(model_type, like, tested_transformers))
        if like or model_type in _LOOPED:
            stack.enter_context(_experts_traced(model_type.removesuffix("_text")))
        yield


@contextmanager
def _registered(model_type: str, like: str, tested_transformers: str) -> Iterator[None]:
    from optimum.exporters import openvino  # noqa: F401  (registers its types)
    from optimum.exporters.tasks import TasksManager

    known = TasksManager._SUPPORTED_MODEL_TYPE
    if "openvino" in known.get(model_type, {}) or misfit(_CONFIGS, [like]):
        yield
        return
    base: Any = getattr(import_module(_CONFIGS), like)
    config = type(f"{model_type}OpenVINOConfig", (base,), {"MAX_TRANSFORMERS_VERSION": tested_transformers})
    with patch.dict(known):
        TasksManager.create_register("openvino")(model_type, _TASK, library_name="transformers")(config)
        yield


@contextmanager
def _experts_traced(folder: str) -> Iterator[None]:
    """Compute all experts of all tokens, in matrices that `sparse_moe` knows, in place of a loop."""
    name = f"transformers.models.{folder}.modeling_{folder}"
    with ExitStack() as stack:
        if not misfit(name, []) and not misfit(_PATCHER, [_EXPERTS]):
            forward = getattr(import_module(_PATCHER), _EXPERTS)
            by_inputs = {tuple(inspect.signature(f).parameters): f for f in (forward, _granite_moe(forward))}
            for part in vars(import_module(name)).values():
                found = getattr(part, "forward", None) if isinstance(part, type) else None
                traced = found and by_inputs.get(tuple(inspect.signature(found).parameters))
                if traced:
                    stack.enter_context(patch.object(part, "forward", traced))
        yield


def _granite_moe(experts: Callable[..., Any]) -> Callable[..., Any]:
    """Granite's mixture, whose experts are two matrices of all and sort their tokens."""

    def forward(self: Any, layer_input: Any) -> Any:
        rows = layer_input.reshape(-1, layer_input.shape[-1])
        weights, chosen = self.router.layer(rows).float().topk(self.router.top_k, dim=1)
        held = SimpleNamespace(
            num_experts=self.router.num_experts,
            gate_up_proj=self.input_linear.weight,
            down_proj=self.output_linear.weight,
            act_fn=self.activation,
        )
        return experts(held, rows, chosen, weights.softmax(1)).view(layer_input.shape)

    return forward
