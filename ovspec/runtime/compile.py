"""Read and compile a paged model; every setting is honoured or refused."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

import openvino as ov

import ovspec_ops
from ovspec.runtime.cache import CacheTensor
from ovspec.runtime.devices import is_cpu, is_gpu, smallest_model
from ovspec.runtime.model_check import check_config
from ovspec_models import ModelInfo, OvspecConfig
from ovspec_transforms import CACHE_SIDES, fill_empty_weights, gated_products, keep_mlps_apart, last_line

CACHE_PRECISIONS = {"f32": ov.Type.f32, "f16": ov.Type.f16, "bf16": ov.Type.bf16, "u8": ov.Type.u8}
_SIDES = ("KEY_CACHE_PRECISION", "VALUE_CACHE_PRECISION")
_CACHE_PRECISION_KEYS = ("KV_CACHE_PRECISION", *_SIDES)
_CACHE_INPUTS = tuple(f"{side}." for side in CACHE_SIDES)
_STATE_INPUTS = ("conv_state_table.", "gated_delta_state_table.")


def read_model(core: ov.Core, models_path: Path) -> ov.Model:
    """Read `openvino_model.xml` of a folder; load the native library if the IR contains native operations.

    Raises:
        ValueError: the folder has no model, the IR cannot be read, or config.json does not fit it.
        RuntimeError: the IR contains native operations, and the native library does not fit the installed
            OpenVINO.
    """
    info, config = ModelInfo.read(models_path), OvspecConfig.load(models_path)
    if config is not None and config.operations:
        ovspec_ops.load(core)
    model = read_ir(core, models_path / "openvino_model.xml")
    check_config(info, model)
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
            asked = precision_name(settings.get("KV_CACHE_PRECISION", ""))
            raise ValueError(
                f"KV_CACHE_PRECISION={asked} does not go with this INFERENCE_PRECISION_HINT on {device} "
                f"({reason}); change one of them"
            ) from error
        reason = _refused_property(core, device, settings) or reason
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


def with_defaults(properties: Mapping[str, object], device: str) -> dict[str, object]:
    """The user's properties with ovspec's defaults: a u8 cache by token, the fastest for verification."""
    settings = dict(properties)
    if not is_cpu(device):
        return settings
    if not any(key in settings for key in _CACHE_PRECISION_KEYS):
        settings["KV_CACHE_PRECISION"] = "u8"
    if _key_precision(settings) == "u8":
        settings.setdefault("KEY_CACHE_QUANT_MODE", "BY_TOKEN")
    return settings


@functools.cache
def _supported_properties(core: ov.Core, device: str) -> tuple[str, ...]:
    """Names of properties; asked for once, as OpenVINO's Python binding never frees the answer."""
    return tuple(map(str, core.get_property(device, "SUPPORTED_PROPERTIES")))


def check_properties(core: ov.Core, device: str, settings: Mapping[str, object]) -> None:
    """Refuse unknown devices and properties, and what `check_cache_precisions` refuses."""
    kind = device.split(".")[0]
    try:
        numbers = core.get_property(kind, "AVAILABLE_DEVICES")
        known = set(_supported_properties(core, device))
    except RuntimeError as error:
        raise _missing(core, device) from error
    # A plugin answers for a device of any number, and one that found no device answers too.
    there = {kind, *(f"{kind}.{number}" for number in numbers if number)}
    if not numbers or ":" in device or device not in there:
        raise _missing(core, device)
    known |= {"CACHE_DIR", "CACHE_MODE", "KV_CACHE_PRECISION"}
    known |= {"KEY_CACHE_QUANT_MODE"} if is_cpu(device) else set()
    unknown = sorted(set(settings) - known)
    if unknown:
        raise ValueError(
            f"property {unknown[0]!r} is unknown to device {device}: check its spelling or remove it"
        )
    check_cache_precisions(settings)
    if is_gpu(device) and _is_f32(settings) and _key_precision(settings) in ("u8", "i8"):
        raise ValueError(
            f"KV_CACHE_PRECISION={_key_precision(settings)} with an inference precision of f32: the plugin "
            "compiles it and fails at the first pass; leave KV_CACHE_PRECISION out, or ask for "
            "INFERENCE_PRECISION_HINT=f16"
        )


def _missing(core: ov.Core, device: str) -> ValueError:
    """What to say of a device that is not there; OpenVINO loads every plugin to list those that are."""
    return ValueError(f"device={device!r} is not available here: expected one of {core.available_devices}")


def default_cache_precision(settings: Mapping[str, object]) -> str:
    """The largest precision that a plugin gives keys and values where the settings do not say it."""
    return "f32" if _is_f32(settings) else "f16"


def _refused_property(core: ov.Core, device: str, settings: Mapping[str, object]) -> str | None:
    """The property that the device refuses with any model, and its own sentence about it."""
    model = smallest_model()
    for name, value in settings.items():
        try:
            core.compile_model(model, device, {name: value})
        except RuntimeError as error:
            return f"{name}={precision_name(value)}: {last_line(error)}"
    return None


def _is_f32(settings: Mapping[str, object]) -> bool:
    hint = precision_name(settings.get("INFERENCE_PRECISION_HINT", ""))
    return hint == "f32" or (not hint and str(settings.get("EXECUTION_MODE_HINT", "")).endswith("ACCURACY"))


def check_cache_precisions(settings: Mapping[str, object]) -> None:
    """Refuse unsupported cache precisions and quantisation modes.

    Raises:
        ValueError: an unsupported precision or mode.
    """
    mode, keys = settings.get("KEY_CACHE_QUANT_MODE"), _key_precision(settings)
    if mode is not None and keys not in ("", "u8"):
        raise ValueError(
            f"KEY_CACHE_QUANT_MODE={mode} is for u8 keys, but their precision is {keys}: leave one out"
        )
    for key in _CACHE_PRECISION_KEYS:
        if key in settings and precision_name(settings[key]) not in CACHE_PRECISIONS:
            raise ValueError(
                f"{key}={precision_name(settings[key])} is not supported: expected one of "
                f"{', '.join(CACHE_PRECISIONS)}"
            )


def written_type(settings: Mapping[str, object]) -> ov.Type | None:
    """Type of keys and values where `CacheWrite` writes them: u8 by token, a scale for each head, or f32.

    Returns:
        `None` for others. In bf16 the plugin's caches are not f32 either.
    """
    both = {precision_name(settings.get(key, settings.get("KV_CACHE_PRECISION", ""))) for key in _SIDES}
    grouped = any(settings.get(f"{side}_GROUP_SIZE") for side in ("KEY_CACHE", "VALUE_CACHE"))
    if both == {"u8"} and settings.get("KEY_CACHE_QUANT_MODE") == "BY_TOKEN" and not grouped:
        return ov.Type.u8
    return ov.Type.f32 if both == {"f32"} and _is_f32(settings) else None


def precision_name(value: object) -> str:
    """The short name of a precision given as a string or an `openvino.Type`."""
    return value.get_type_name() if isinstance(value, ov.Type) else str(value)


def cache_tensors(compiled: ov.CompiledModel) -> list[CacheTensor]:
    """The block-wise inputs of a compiled paged model."""
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


def block_size_of(compiled: ov.CompiledModel) -> int:
    """Tokens per block of a compiled paged model's caches, as its device lays values out."""
    return next(
        spec.block_shape[1] for spec in cache_tensors(compiled) if spec.name.startswith("value_cache.")
    )


def _key_precision(settings: Mapping[str, object]) -> str:
    return precision_name(settings.get("KEY_CACHE_PRECISION", settings.get("KV_CACHE_PRECISION", "")))


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
