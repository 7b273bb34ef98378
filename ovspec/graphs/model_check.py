"""Check that config.json of a folder describes the model in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openvino as ov

from ovspec.devices.devices import is_cpu
from ovspec.operations.attention_config import AttentionConfig
from ovspec_models import ModelInfo
from ovspec_models.families import family_of
from ovspec_models.folder.graph_files import graph_of
from ovspec_transforms import PagedLayer
from ovspec_transforms.graph import nodes_of_type

_KV_RANK = 4


def check_config(info: ModelInfo, model: ov.Model) -> None:
    """Compare a folder's config.json with its stateful IR.

    For untested families only the vocabulary is compared, because they may have other states.

    Raises:
        ValueError: the IR has no states, or differs from config.json; the message names the first difference.
    """
    if not model.get_variables():
        raise ValueError(
            f"{graph_of(info.folder)} keeps no keys and values between passes: it was exported "
            "without a cache, or without states; export the model again: `ovspec export -m ... OUT`"
        )
    found = {"vocab_size": {_static(model.outputs[0].get_partial_shape()[-1])}}
    if family_of(info.model_type) is not None:
        states = [node.get_output_partial_shape(0) for node in nodes_of_type(model, "ReadValue")]
        # The states of linear attention have one size for texts of any length.
        shapes = [shape for shape in states if len(shape) == _KV_RANK and shape[2].is_dynamic]
        found["num_hidden_layers"] = {len(shapes) // 2}
        found["num_key_value_heads"] = {_static(shape[1]) for shape in shapes}
        found["head_dim"] = {_static(shape[3]) for shape in shapes}
        found["num_attention_heads"] = {
            _static(node.input(0).get_partial_shape()[1])
            for node in nodes_of_type(model, "ScaledDotProductAttention")
        }
    of_full_layers = {"num_key_value_heads": info.full_kv_heads, "head_dim": info.full_head_dim}
    for name, values in found.items():
        said = info.num_kv_layers if name == "num_hidden_layers" else getattr(info, name)
        others = [value for value in values if value not in (said, of_full_layers.get(name), None)]
        if others:
            raise ValueError(_differs(info, f"{name} is {said}", f"has {others[0]}"))


@contextmanager
def naming(model: str | Path | ov.Model) -> Iterator[None]:
    """Name the folder, and the type, of a model that a transformation refuses."""
    try:
        yield
    except ValueError as error:
        if isinstance(model, ov.Model):
            raise
        kind = ModelInfo.read(model).model_type
        raise ValueError(f"'{model}', a model of type {kind!r}: {error}") from error


def check_graph(info: ModelInfo, layers: list[PagedLayer], device: str, attention: AttentionConfig) -> None:
    """Refuse a paged graph with other windows than config.json says, and what layers with a state can't do.

    Raises:
        ValueError: a layer has another window, or a model with linear attention is asked for sparse prompts,
            or for another device than a CPU.
    """
    check_windows(info, layers)
    if not info.is_hybrid:
        return
    found = f"{info.num_hidden_layers - info.num_kv_layers} layers of the model have linear attention"
    if not is_cpu(device):
        raise ValueError(f"device={device!r}: {found}, whose states are kept on CPUs only; use device='CPU'")
    if attention.prefill is not None:
        raise ValueError(
            f"prefill='sparse': {found}, which read the pieces of a prompt one after the other; use "
            "prefill='dense'"
        )


def check_windows(info: ModelInfo, layers: list[PagedLayer]) -> None:
    """Compare the sliding windows of config.json with those of the paged graph.

    Raises:
        ValueError: a layer has another window than config.json says.
    """
    limit = info.max_position_embeddings or 2**31
    windows = dict(enumerate(info.layer_windows))
    for layer in layers:
        # The index is that of the cache, which several layers may read.
        found = layer.sliding_window
        said = windows.get(layer.index, found)
        if found != said and min(said or limit, found or limit) < limit:
            claim = f"layer {layer.index} has a sliding window of {said}"
            raise ValueError(_differs(info, claim, f"computes with {found}"))


def _static(dim: ov.Dimension) -> int | None:
    return int(dim.get_length()) if dim.is_static else None


def _differs(info: ModelInfo, said: str, found: str) -> str:
    return (
        f"{info.folder / 'config.json'}: {said}, but {graph_of(info.folder).name} {found}; restore the file, "
        "or export the model again: `ovspec export -m ... OUT`"
    )
