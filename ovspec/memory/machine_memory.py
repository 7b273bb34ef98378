"""Total and available memory of this machine and its control groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, slots=True)
class _Version:
    """Names of one version of control groups: its mounts, its files of limits, and those of what is used."""

    mounts: tuple[str, ...]
    limits: tuple[str, ...]
    used: str
    reclaimable: str


_V1 = _Version(("memory",), ("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")
# Beyond memory.high the kernel does not refuse memory, it stops the process until some is free.
_V2 = _Version(("", "unified"), ("memory.max", "memory.high"), "memory.current", "inactive_file")


def available_bytes(root: Path = Path("/")) -> int:
    """Bytes available without swapping, in the machine and in each control group that this process is in."""
    return max(0, min([_machine_bytes("MemAvailable", root), *_group_rooms(root)]))


def total_bytes() -> int:
    """Total memory of the machine in bytes."""
    return _machine_bytes("MemTotal", Path("/"))


def _machine_bytes(name: str, root: Path) -> int:
    lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def _group_rooms(root: Path) -> Iterator[int]:
    """What each limited group, from that of this process up to the root, has left."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return  # a kernel without control groups
    for line in lines:
        number, controllers, name = line.split(":", 2)
        if number != "0" and "memory" not in controllers.split(","):
            continue
        version = _V2 if number == "0" else _V1
        for mount in version.mounts:
            top = root / "sys/fs/cgroup" / mount
            for folder in _with_parents(PurePosixPath(name)):
                yield from _room(top / folder, version)


def _with_parents(name: PurePosixPath) -> list[PurePosixPath]:
    """A group and those it is in, relative to the mount.

    In a container the mount often is the group itself, whatever its name outside; folders that do not exist
    are passed over for that reason.
    """
    if ".." in name.parts:  # of a process outside the container's root group
        return [PurePosixPath()]
    below = name.relative_to("/")
    return [below, *below.parents] if below.parts else [below]


def _room(folder: Path, version: _Version) -> Iterator[int]:
    try:
        limits = [
            path.read_text(encoding="ascii") for name in version.limits if (path := folder / name).exists()
        ]
        used = int((folder / version.used).read_text(encoding="ascii"))
        stat = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return  # no memory controller here, or a root group, which has no limit
    free = int(dict(line.split() for line in stat).get(version.reclaimable, 0))
    yield from (int(limit) - used + free for limit in limits if limit.strip() != "max")
