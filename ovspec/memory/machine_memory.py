"""Total and available memory of this machine and its control group."""

from __future__ import annotations

from pathlib import Path


def available_bytes(root: Path = Path("/")) -> int:
    """Bytes available without swapping, in the machine and in this control group if it has a limit."""
    lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    machine = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    group = root / "sys/fs/cgroup"
    try:
        limit = (group / "memory.max").read_text(encoding="ascii").strip()
        used = int((group / "memory.current").read_text(encoding="ascii"))
        stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
    except OSError:
        return machine  # no memory controller
    return machine if limit == "max" else min(machine, int(limit) - used + int(stat["inactive_file"]))


def total_bytes() -> int:
    """Total memory of the machine in bytes."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemTotal:"))
