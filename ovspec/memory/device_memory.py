"""Memory that models on a device can take."""

from __future__ import annotations

from ovspec.devices.devices import is_gpu, openvino_core
from ovspec.memory.machine_memory import available_bytes


def device_bytes(device: str) -> int:
    """Bytes that a device has free; an integrated GPU has no more than the machine it shares.

    Of a GPU's memory, what other processes take is not known.
    """
    if not is_gpu(device):
        return available_bytes()
    core = openvino_core()
    total = int(core.get_property(device, "GPU_DEVICE_TOTAL_MEM_SIZE"))
    free: int = total - sum(core.get_property(device, "GPU_MEMORY_STATISTICS").values())
    shared = "INTEGRATED" in str(core.get_property(device, "DEVICE_TYPE"))
    return max(0, min(free, available_bytes()) if shared else free)
