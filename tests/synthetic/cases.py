"""Tiny shapes of each family, the transformers models that go with them, and their graphs on the CPU."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino._offline_transformations import paged_attention_transformation

from ovspec_models.shapes import ModelShape, RopeScaling, get_shape

_TINY: dict[str, Any] = {
    "hidden_size": 384,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 999,
    "max_position_embeddings": 4096,
}

TINY_SHAPES: dict[str, ModelShape] = {
    "qwen3": replace(get_shape("qwen3-0.6b"), **_TINY),
    # Six heads, as transformers wants heads * head_dim == hidden_size here. The rotary frequencies fall
    # below, between and above the two thresholds of Llama 3's rescaling.
    "llama": replace(
        get_shape("llama-3.1-8b"),
        **(_TINY | {"num_attention_heads": 6}),
        rope_scaling=RopeScaling(8.0, 1.0, 4.0, 512),
    ),
    "qwen3_moe": replace(
        get_shape("qwen3-30b-a3b"), **_TINY, num_experts=9, num_experts_per_tok=3, moe_intermediate_size=128
    ),
}

F32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}


def transformers_config(shape: ModelShape) -> dict[str, Any]:
    """Keyword arguments of the family's transformers config class."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": shape.rope_theta}
    if shape.rope_scaling is not None:
        scaling = shape.rope_scaling
        rope |= {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_max_position_embeddings,
        }
    config = {name: getattr(shape, name) for name in _TINY}
    config |= {"rms_norm_eps": shape.rms_norm_eps, "tie_word_embeddings": shape.tie_word_embeddings}
    config |= {"rope_parameters": rope}
    if shape.is_moe:
        moe = ("num_experts", "num_experts_per_tok", "moe_intermediate_size")
        config |= {name: getattr(shape, name) for name in moe} | {"norm_topk_prob": True}
    return config


def transformers_model(shape: ModelShape) -> Any:
    """An initialised transformers model of the shape, f32, in evaluation mode."""
    import torch
    import transformers

    family = {"qwen3": "Qwen3", "llama": "Llama", "qwen3_moe": "Qwen3Moe"}[shape.model_type]
    config = getattr(transformers, f"{family}Config")(**transformers_config(shape))
    # The models are tiny; more threads would be slower.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return getattr(transformers, f"{family}ForCausalLM")(config).eval()


def weight_arrays(model: ov.Model, shape: ModelShape) -> dict[str, NDArray[np.float32]]:
    """Every weight of a synthetic model by name, decompressed here with NumPy."""
    constants = {
        node.get_friendly_name(): node for node in model.get_ops() if node.get_type_name() == "Constant"
    }

    def value(name: str) -> NDArray[np.float32]:
        node = constants[name]
        if node.get_element_type() in (ov.Type.u4, ov.Type.i4):
            packed = node.data.reshape(-1)
            nibbles = np.stack([packed & 15, packed >> 4], -1).reshape(-1)[: np.prod(list(node.shape))]
            values = nibbles.astype(np.float32)
            if node.get_element_type() == ov.Type.i4:
                values = np.where(values > 7, values - 16, values)
            return values.reshape(list(node.shape))
        return np.asarray(node.data, np.float32)

    arrays = {}
    for name, dims in shape.weight_shapes().items():
        array = value(f"self.{name}")
        if f"self.{name}/zero_point" in constants:
            array = array - value(f"self.{name}/zero_point")
        if f"self.{name}/scale" in constants:
            array = array * value(f"self.{name}/scale")
        arrays[name] = array.reshape(dims)
    return arrays


def load_into(reference: Any, arrays: dict[str, NDArray[np.float32]]) -> Any:
    """Give a transformers model the weights; every one of its parameters must be covered."""
    import torch

    state = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    for name in [name for name in state if name.endswith("experts.gate_proj")]:
        up = name.replace("gate_proj", "up_proj")
        state[name.replace("gate_proj", "gate_up_proj")] = torch.cat([state.pop(name), state.pop(up)], 1)
    if reference.config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    reference.load_state_dict(state, strict=True)
    return reference


def paged(model: ov.Model) -> ov.Model:
    """A copy of the model after OpenVINO's paged attention transformation."""
    model = model.clone()
    paged_attention_transformation(model)
    return model


@dataclass(frozen=True)
class RuntimeLayers:
    """What the CPU plugin runs for a model."""

    types: Counter[str]
    """How many layers of each type, constants left out."""
    matrices: Counter[tuple[str, ...]]
    """Fused layers: type, primitive, precision and the element types of all inputs."""


def runtime_layers(model: ov.Model) -> RuntimeLayers:
    """Compile a model for the CPU and count its layers."""
    # Exports in f32 ask for an f16 cache, and keep doing so when NNCF compresses them afterwards.
    compiled = ov.Core().compile_model(model, "CPU", {"KV_CACHE_PRECISION": "u8"})
    types: Counter[str] = Counter()
    matrices: Counter[tuple[str, ...]] = Counter()
    for node in compiled.get_runtime_model().get_ops():
        info = node.get_rt_info()
        kind, *rest = (info[key].astype(str) for key in ("layerType", "primitiveType", "runtimePrecision"))
        if kind != "Const":
            types[kind] += 1
        if kind in ("FullyConnected", "GatherMatmul", "RMS", "RoPE", "PagedAttention"):
            inputs = (port.get_element_type().get_type_name() for port in node.inputs())
            matrices[(kind, *rest, *inputs)] += 1
    return RuntimeLayers(types, matrices)
