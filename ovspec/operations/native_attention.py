"""Which models our attention takes, before anything is compiled."""

from __future__ import annotations

from pathlib import Path

import openvino as ov

from ovspec.devices.devices import is_cpu
from ovspec.operations.attention_config import Attention
from ovspec_models.folder.graph_files import graph_of
from ovspec_models.folder.ir_facts import state_shapes
from ovspec_ops.common.cache_layout import why_not_taken
from ovspec_transforms.graph import nodes_of_type

_KV_RANK, _KV_HEADS, _TOKENS, _SIZE = 4, 1, 2, 3  # of keys or values [texts, KV heads, tokens, head size]


def attention_on(device: str, asked: Attention | None, model: str | Path | ov.Model) -> Attention:
    """Who computes attention: what the user asks for, else our operation where it runs and takes the model.

    Args:
        model: folder with `openvino_model.xml`, or the model itself.

    Raises:
        ValueError: the user asks for our operation, which does not take the heads of the model.
    """
    if asked not in (None, "native") or not is_cpu(device):  # `AttentionConfig` refuses other names
        return asked or "stock"
    why = why_not_native(model)
    if asked and why:
        raise ValueError(f"attention='native': {_name(model)} has {why}; use attention='stock'")
    return "stock" if why else "native"


def why_not_native(model: str | Path | ov.Model) -> str:
    """Why our operations do not take the keys and values of a model; empty where they do.

    States of another form than keys and values in their usual order say nothing: what turns the graph into a
    paged one finds these.
    """
    for shape in _states(model):
        usual = len(shape) == _KV_RANK and shape[_TOKENS] < 0 <= min(shape[_KV_HEADS], shape[_SIZE])
        if usual and (why := why_not_taken(shape[_KV_HEADS], shape[_SIZE], shape[_SIZE])):
            return why
    return ""


def _states(model: str | Path | ov.Model) -> list[tuple[int, ...]]:
    if not isinstance(model, ov.Model):
        xml = graph_of(Path(model))  # one that is not there is refused elsewhere
        return state_shapes(xml) if xml.is_file() else []
    shapes = [node.get_output_partial_shape(0) for node in nodes_of_type(model, "ReadValue")]
    return [tuple(dim.get_length() if dim.is_static else -1 for dim in shape) for shape in shapes]


def _name(model: str | Path | ov.Model) -> str:
    return "the model" if isinstance(model, ov.Model) else f"the model in {model}"
