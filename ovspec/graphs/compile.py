"""Read and compile a paged model; every setting is honoured or refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import openvino as ov

import ovspec_ops
from ovspec.cache.cache import CacheTensor
from ovspec.devices.devices import is_cpu, smallest_model
from ovspec.devices.properties import CACHE_PRECISION_KEYS, CACHE_PRECISIONS, precision_name, refused_property
from ovspec.graphs.model_check import check_config
from ovspec_models import ModelInfo, OvspecConfig
from ovspec_models.folder.graph_files import graph_of, text_embedding_of
from ovspec_transforms import (
    CACHE_SIDES,
    fill_empty_weights,
    gated_products,
    join_text_embedding,
    keep_mlps_apart,
    last_line,
)

_CACHE_INPUTS = tuple(f"{side}." for side in CACHE_SIDES)
_STATE_INPUTS = ("conv_state_table.", "gated_delta_state_table.", "selective_ssm_state_table.")


def read_model(core: ov.Core, models_path: Path) -> ov.Model:
    """Read the text model of a folder; load the native library if the IR contains native operations.

    Raises:
        ValueError: the folder has no model, the IR cannot be read, or config.json does not fit it.
        RuntimeError: the IR contains native operations, and the native library does not fit the installed
            OpenVINO.
    """
    info, config = ModelInfo.read(models_path), OvspecConfig.load(models_path)
    if config is not None and config.operations:
        ovspec_ops.load(core)
    model = read_ir(core, graph_of(models_path))
    check_config(info, model)
    if (embedding := text_embedding_of(models_path)) is not None:
        join_text_embedding(model, read_ir(core, embedding))
    fill_empty_weights(model)
    return model


def read_ir(core: ov.Core, xml: Path) -> ov.Model:
    """Read a file of OpenVINO IR and the weights beside it.

    Raises:
        ValueError: it can't be read.
    """
    remedy = "copy it again, or export the model again: `ovspec export -m ... OUT`"
    with xml.open("rb") as file:
        # OpenVINO would try its readers of other formats on a file that is not XML, with confusing errors.
        if not file.read(64).lstrip().startswith(b"<"):
            raise ValueError(f"{xml} is no XML; {remedy}")
    try:
        return core.read_model(xml)
    # Sizes read from a damaged file, and OpenVINO's message with a name out of it that is no text.
    except (RuntimeError, MemoryError, UnicodeDecodeError) as error:
        raise ValueError(f"{xml} or its .bin file can't be read ({last_line(error)}); {remedy}") from error


def compile_paged(
    core: ov.Core, model: ov.Model, device: str, settings: Mapping[str, object]
) -> ov.CompiledModel:
    """Compile a paged model; a cache precision other than the requested one is an error.

    Args:
        core: with the operations of the model loaded.
        model: after its transforms.
        settings: OpenVINO properties that passed `check_properties`.

    Raises:
        ValueError: a bad value, or a cache precision that the device does not use with this inference
            precision.
    """
    if is_cpu(device) and gated_products(model) and takes_one_thread(core, settings):
        keep_mlps_apart(model)
    try:
        compiled = core.compile_model(model, device, dict(settings))
    except RuntimeError as error:
        reason = last_line(error)
        if "kvcache" in reason:
            given = {key: settings[key] for key in CACHE_PRECISION_KEYS if key in settings}
            asked = ", ".join(f"{key}={precision_name(value)}" for key, value in given.items())
            raise ValueError(
                f"{asked} does not go with this INFERENCE_PRECISION_HINT on {device} ({reason}); change "
                "one of them"
            ) from error
        reason = refused_property(core, device, settings) or reason
        raise ValueError(f"device {device!r} refuses the model or a property: {reason}") from error
    _check_cache_precision(compiled, settings)
    return compiled


def takes_one_thread(core: ov.Core, settings: Mapping[str, object]) -> bool:
    """Whether a processor computes a model with one thread, by its settings or as there is no other.

    With AMX the plugin fuses gated MLPs, and can't compile them for one thread. `False` too where it can't
    be AMX, for want of bf16.
    """
    if "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        return False
    kept = {name: value for name, value in settings.items() if name not in ("CACHE_DIR", "CACHE_MODE")}
    try:
        found = core.compile_model(smallest_model(), "CPU", kept)
    except RuntimeError:  # a bad setting; what compiles the model says which
        return False
    return int(found.get_property("INFERENCE_NUM_THREADS")) <= int(found.get_property("NUM_STREAMS"))


def cache_tensors(compiled: ov.CompiledModel) -> list[CacheTensor]:
    """The block-wise inputs of a compiled paged model; it may have more caches, see `GraphFacts.caches`."""
    return _tensors(compiled, _CACHE_INPUTS)


def state_tensors(compiled: ov.CompiledModel) -> list[CacheTensor]:
    """The inputs that hold states of layers of linear attention, a text per entry."""
    return _tensors(compiled, _STATE_INPUTS)


def _tensors(compiled: ov.CompiledModel, prefixes: tuple[str, ...]) -> list[CacheTensor]:
    tensors = []
    for port in compiled.inputs:
        name = next((name for name in port.get_names() if name.startswith(prefixes)), None)
        if name is not None:
            shape = tuple(dim.get_length() for dim in list(port.get_partial_shape())[1:])
            tensors.append(CacheTensor(name, port.get_element_type(), shape))
    return tensors


def block_size_of(caches: Iterable[CacheTensor]) -> int:
    """Tokens per block of a model's caches, as its device lays values out."""
    return next(spec.block_shape[1] for spec in caches if spec.name.startswith("value_cache."))


def _check_cache_precision(compiled: ov.CompiledModel, settings: Mapping[str, object]) -> None:
    """Refuse a cache precision other than the requested one; in bf16 the device may silently use another.

    Raises:
        ValueError: keys or values of the compiled model have another precision than `settings`.
    """
    for cache in cache_tensors(compiled):
        side = {"key_cache": "KEY_CACHE_PRECISION", "value_cache": "VALUE_CACHE_PRECISION"}.get(
            cache.name.split(".")[0]
        )
        if side is None:
            continue
        key = side if side in settings else "KV_CACHE_PRECISION"
        asked = precision_name(settings[key]) if key in settings else None
        # The GPU plugin stores u8 as signed numbers.
        found = ov.Type.u8 if cache.element_type == ov.Type.i8 else cache.element_type
        if asked is not None and found != CACHE_PRECISIONS[asked]:
            raise ValueError(
                f"{key}={asked}: the device would use {cache.element_type.get_type_name()} for {cache.name} "
                "with this inference precision; ask for that, or change INFERENCE_PRECISION_HINT"
            )
