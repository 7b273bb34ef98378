"""Whether the compiled models of a bench fit in memory, side by side or one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_GB = 1e9


def available_bytes(root: Path = Path("/")) -> int:
    """Memory that can be taken without swapping: of the machine, and of this control group if limited."""
    lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    machine = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    group = root / "sys/fs/cgroup"
    try:
        limit = (group / "memory.max").read_text(encoding="ascii").strip()
        used = int((group / "memory.current").read_text(encoding="ascii"))
        stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
    except OSError:
        return machine  # no memory controller here
    return machine if limit == "max" else min(machine, int(limit) - used + int(stat["inactive_file"]))


def total_bytes() -> int:
    """Memory of the machine."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemTotal:"))


def fits_together(models: Mapping[str, int], shared: int, available: int) -> bool:
    """Whether all models fit at once.

    Args:
        models: bytes of each compiled model with its cache, by name.
        shared: bytes that are held beside them.
        available: bytes that may be taken.

    Raises:
        ValueError: the largest of them does not fit even alone.
    """
    largest = max(models, key=lambda name: models[name])
    needed = shared + models[largest]
    if needed > available:
        raise ValueError(
            f"not enough memory for the {largest} model alone: about {needed / _GB:.1f} GB are needed "
            f"(weights, KV cache, buffers), {available / _GB:.1f} GB are available; "
            "give fewer --layers (with --shape) or a shorter --context"
        )
    return shared + sum(models.values()) <= available
