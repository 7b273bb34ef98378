"""Machine and versions, for the reports of benchmarks."""

from __future__ import annotations

import platform

import numpy as np
import openvino as ov

import ovspec
import ovspec_ops
from ovspec.memory.machine_memory import total_bytes


def machine(native: bool) -> dict[str, object]:
    """Processor, capabilities, instruction set of the native operations if they ran, and memory."""
    core = ov.Core()
    return {
        "processor": str(core.get_property("CPU", "FULL_DEVICE_NAME")),
        "openvino_capabilities": list(core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")),
        "instruction_set": ovspec_ops.active_isa() if native else None,
        "memory_bytes": total_bytes(),
    }


def versions() -> dict[str, str]:
    """Versions of the measured packages."""
    return {
        "ovspec": ovspec.__version__,
        "openvino": ov.get_version(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
