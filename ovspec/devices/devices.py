"""OpenVINO's devices: one core for the process, and what a device's name means."""

from __future__ import annotations

import functools
import os

import numpy as np
import openvino as ov
from openvino import opset15 as ops

_SPREAD = ("MULTI", "HETERO", "BATCH", "AUTO_BATCH")
# Variables by which oneDNN takes other kernels than the processor's best.
_OF_ONEDNN = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE")


@functools.cache
def openvino_core() -> ov.Core:
    """The core of this process; memory of a GPU belongs to the core that allocated it."""
    return ov.Core()


def is_cpu(device: str) -> bool:
    """Whether a device is the processor, where our operations run."""
    return device.split(".")[0] == "CPU"


def is_gpu(device: str) -> bool:
    """Whether a device has its own memory, as a GPU."""
    return device.split(".")[0] == "GPU"


@functools.cache
def processor(device: str) -> str:
    """By what OpenVINO chooses its kernels: the processor's name, its instructions, limits set for oneDNN."""
    core = openvino_core()
    parts = [core.get_property(device, "FULL_DEVICE_NAME").strip()]
    parts += sorted(core.get_property(device, "OPTIMIZATION_CAPABILITIES"))
    if is_cpu(device):  # clouds give processors of several kinds one name
        compiled = core.compile_model(smallest_model(), device)
        said = compiled.get_property("RUNTIME_REQUIREMENTS")
        parts += [part for part in said.split(";") if part.startswith("isa=")]
        parts += [f"{name}={os.environ[name]}" for name in _OF_ONEDNN if name in os.environ]
    return ", ".join(parts)


@functools.cache
def masks_trees(device: str) -> bool:
    """Whether OpenVINO's attention verifies draft trees on a device.

    The GPU plugin's kernels for matrix units (XMX) read the mask of every sequence but the first of a pass at
    a wrong place (OpenVINO 2026.4).
    """
    if is_cpu(device):
        return True
    return "GPU_HW_MATMUL" not in openvino_core().get_property(device, "OPTIMIZATION_CAPABILITIES")


@functools.cache
def resolve_device(device: str) -> str:
    """The device that a name stands for: AUTO chooses one, as OpenVINO does, every other name is itself.

    A cache lies in the memory of one device, so a model can't move to another while it runs.

    Raises:
        ValueError: an unknown device, or one that spreads a model over several.
    """
    core = openvino_core()
    kind = device.split(":")[0]
    if kind in _SPREAD:
        raise ValueError(
            f"device={device!r}: the cache lies on one device; expected one of {names(core)}, or AUTO"
        )
    if kind != "AUTO":
        return device
    try:
        compiled = core.compile_model(smallest_model(), device, {"ENABLE_STARTUP_FALLBACK": False})
        chosen: list[str] = compiled.get_property("EXECUTION_DEVICES")
    except RuntimeError as error:
        raise ValueError(
            f"device={device!r} finds no device: expected AUTO or one of {names(core)}"
        ) from error
    return chosen[0].strip("()")


def smallest_model() -> ov.Model:
    """A model that every device takes."""
    parameter = ops.parameter([1], np.float32)
    return ov.Model([ops.relu(parameter)], [parameter], "smallest")


def names(core: ov.Core) -> str:
    """The devices that OpenVINO lists here, for a message."""
    return ", ".join(core.available_devices)
