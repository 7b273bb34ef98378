"""OpenVINO's properties: what ovspec adds, and what it refuses."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import openvino as ov

from ovspec.devices.devices import is_cpu, is_gpu, smallest_model
from ovspec_transforms import last_line

CACHE_PRECISIONS = {"f32": ov.Type.f32, "f16": ov.Type.f16, "bf16": ov.Type.bf16, "u8": ov.Type.u8}
_SIDES = ("KEY_CACHE_PRECISION", "VALUE_CACHE_PRECISION")
CACHE_PRECISION_KEYS = ("KV_CACHE_PRECISION", *_SIDES)


def with_defaults(properties: Mapping[str, object], device: str) -> dict[str, object]:
    """The user's properties with ovspec's defaults: a u8 cache by token, the fastest for verification."""
    settings = dict(properties)
    if not is_cpu(device):
        return settings
    if not any(key in settings for key in CACHE_PRECISION_KEYS):
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


def refused_property(core: ov.Core, device: str, settings: Mapping[str, object]) -> str | None:
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
    for key in CACHE_PRECISION_KEYS:
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


def _key_precision(settings: Mapping[str, object]) -> str:
    return precision_name(settings.get("KEY_CACHE_PRECISION", settings.get("KV_CACHE_PRECISION", "")))
