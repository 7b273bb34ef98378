"""Native OpenVINO operations of ovspec, their NumPy references and the loader."""

from ovspec_ops.common.cache_layout import BLOCK_SIZE
from ovspec_ops.loader import (
    active_isa,
    available_isas,
    create,
    extension_path,
    fault_counter,
    last_fault,
    load,
    step_times,
)

__all__ = [
    "BLOCK_SIZE",
    "active_isa",
    "available_isas",
    "create",
    "extension_path",
    "fault_counter",
    "last_fault",
    "load",
    "step_times",
]
