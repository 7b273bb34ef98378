"""Stateful decoder -> paged decoder, through OpenVINO's stock transform."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino._offline_transformations import paged_attention_transformation

from ovspec_transforms.attention.attention_mask import biased_attention
from ovspec_transforms.attention.rope_positions import join_positions, read_positions
from ovspec_transforms.errors import last_line
from ovspec_transforms.graph import PAGED_ATTENTION, evaluate, nodes_of_type, source_node
from ovspec_transforms.report import TransformReport

# Inputs of PagedAttentionExtension that our transforms read or rewire.
QUERY, KEY, VALUE, KEY_CACHE, VALUE_CACHE = 0, 1, 2, 3, 4
PAST_LENS, SUBSEQUENCE_BEGINS, BLOCK_INDICES, BLOCK_INDICES_BEGINS = 5, 6, 7, 8
SCALE, SLIDING_WINDOW, ALIBI_SLOPES, MAX_CONTEXT_LEN = 9, 10, 11, 12
SINKS = 20


def to_paged(model: ov.Model) -> TransformReport:
    """Turn SDPA over KV states into `PagedAttentionExtension` over `key_cache.N`/`value_cache.N`.

    The stock transform changes `input_ids` and `position_ids` to one flat row dimension `[rows]`.

    Raises:
        ValueError: the model has no scaled-dot-product attention over a KV state, e.g. because it is
            no decoder or is paged already, or adds a bias to the scores that the stock transform would lose.
    """
    if nodes_of_type(model, PAGED_ATTENTION):
        raise ValueError("the model is paged already: give the stateful IR that optimum-intel exports")
    if not nodes_of_type(model, "ScaledDotProductAttention"):
        raise ValueError(
            "the model has no attention that OpenVINO can page (no ScaledDotProductAttention): it has none "
            "at all, or one that transformers writes out; run this model with transformers instead"
        )
    biased = biased_attention(model)
    lost = ValueError(
        "the model adds a bias to the scores (ALiBi) in a form that OpenVINO's paged attention loses; run it "
        "with optimum-intel instead"
    )
    read_positions(model)
    try:
        paged_attention_transformation(model)
    except RuntimeError as error:
        raise (lost if biased else ValueError(_why_refused(model, error))) from error
    join_positions(model)
    layers = nodes_of_type(model, PAGED_ATTENTION)
    if not layers:
        raise ValueError("to_paged found no attention over a KV state: the model is no decoder with a cache")
    if biased and not any(constant_input(node, ALIBI_SLOPES, "ALiBi slopes").size for node in layers):
        raise lost
    return TransformReport("to_paged", tuple(node.get_friendly_name() for node in layers))


def _why_refused(model: ov.Model, error: Exception) -> str:
    """Why the stock transform does not take a model, which it leaves half changed."""
    left = nodes_of_type(model, "ScaledDotProductAttention")
    if not left:
        return f"OpenVINO's paged attention transformation refuses this model: {last_line(error)}"
    return (
        f"layer {left[0].get_friendly_name()}: its attention does not read cached keys and values as they "
        "are, but what other operations make of them, which OpenVINO can not page; run this "
        "model with transformers instead"
    )


@dataclass(frozen=True, slots=True)
class PagedLayer:
    """One paged attention layer: its node, number and size of its heads, its window (0: none)."""

    node: ov.Node
    index: int
    num_kv_heads: int
    key_head_size: int
    value_head_size: int
    sliding_window: int

    @property
    def name(self) -> str:
        """Friendly name of the layer's node, for messages."""
        return str(self.node.get_friendly_name())

    @property
    def scale(self) -> float:
        """What products of queries and keys are multiplied by."""
        scale = constant_input(self.node, SCALE, "scale")
        return float(scale.reshape(-1)[0]) if scale.size else self.key_head_size**-0.5

    @property
    def has_alibi(self) -> bool:
        """Whether it adds a bias by distance to the scores."""
        return bool(constant_input(self.node, ALIBI_SLOPES, "ALiBi slopes").size)

    @classmethod
    def of(cls, node: ov.Node) -> PagedLayer:
        """Read a `PagedAttentionExtension` node; `index` is the N of its `key_cache.N`."""
        cache_names = node.input(KEY_CACHE).get_source_output().get_names()
        numbers = [re.fullmatch(r"key_cache\.(\d+)", name) for name in cache_names]
        index = next(int(match[1]) for match in numbers if match)
        info = node.get_rt_info()
        size = {key: int(info[key].value) for key in ("num_k_heads", "k_head_size", "v_head_size")}
        window = constant_input(node, SLIDING_WINDOW, "sliding window")
        return cls(
            node,
            index,
            size["num_k_heads"],
            size["k_head_size"],
            size["v_head_size"],
            int(window.reshape(-1)[0]) if window.size else 0,
        )


def constant_input(node: ov.Node, position: int, what: str) -> NDArray[Any]:
    """The value of a constant input of a paged attention node.

    Raises:
        ValueError: the input is computed at run time, which the native operations do not support.
    """
    tensor = evaluate(source_node(node, position))
    if tensor is None:
        raise ValueError(
            f"layer {node.get_friendly_name()}: its {what} is computed at run time, "
            "which paged verification does not support"
        )
    return np.array(tensor.data)


def paged_layers(model: ov.Model) -> list[PagedLayer]:
    """The paged attention layers of a model, in the order of their caches."""
    layers = [PagedLayer.of(node) for node in nodes_of_type(model, PAGED_ATTENTION)]
    return sorted(layers, key=lambda layer: layer.index)
