"""Machine and versions, for reports."""

from __future__ import annotations

import platform

import numpy as np
import openvino as ov

import ovspec
import ovspec_ops
from ovspec.devices.devices import is_cpu, openvino_core
from ovspec.memory.machine_memory import total_bytes


def machine(native: bool, device: str = "CPU") -> dict[str, object]:
    """Processor and device, capabilities, instruction set of native operations that ran, and memory."""
    core = openvino_core()
    return {
        **({} if is_cpu(device) else {"device": str(core.get_property(device, "FULL_DEVICE_NAME"))}),
        "processor": processor(),
        "openvino_capabilities": list(core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")),
        "instruction_set": ovspec_ops.active_isa() if native else None,
        "memory_bytes": total_bytes(),
    }


def processor() -> str:
    """Name of the processor."""
    return str(openvino_core().get_property("CPU", "FULL_DEVICE_NAME"))


def versions() -> dict[str, str]:
    """Versions of the measured packages."""
    return {
        "ovspec": ovspec.__version__,
        "openvino": ov.get_version(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
