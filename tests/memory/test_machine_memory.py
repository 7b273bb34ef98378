"""Available memory: the least of the machine's and that of every control group above the process."""

from __future__ import annotations

from pathlib import Path

import pytest

from ovspec.memory.machine_memory import available_bytes

MACHINE = 5000 * 1024
V1, V2 = "4:memory:", "0::"
UNLIMITED = 9223372036854771712  # what version 1 says of a group without a limit


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:  5000 kB\n")
    return tmp_path


def inside(root: Path, *lines: str) -> None:
    """Put the process into groups, beside those of other controllers."""
    (root / "proc/self/cgroup").write_text("\n".join(["8:pids:/else", "1:cpu,cpuacct:/", *lines, ""]))


def v1(root: Path, name: str, limit: int, used: int = 1_000_000) -> None:
    folder = root / "sys/fs/cgroup/memory" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{used}\n")
    (folder / "memory.stat").write_text("inactive_file 7\ntotal_inactive_file 100000\n")


def v2(root: Path, name: str, limit: int | str, used: int = 1_000_000, high: int | str = "max") -> None:
    folder = root / "sys/fs/cgroup" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.high").write_text(f"{high}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text("anon 900000\ninactive_file 100000\n")


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        pytest.param("max", MACHINE, id="unlimited"),
        pytest.param(3_000_000, 2_100_000, id="limited"),
        pytest.param(90_000_000, MACHINE, id="limit above the machine"),
        pytest.param(500_000, 0, id="all is used"),
    ],
)
def test_the_group_of_the_process(root: Path, limit: int | str, expected: int) -> None:
    inside(root, V2 + "/user.slice/job")
    v2(root, "user.slice/job", limit)
    assert available_bytes(root) == expected


@pytest.mark.parametrize("tightest", ["", "user.slice", "user.slice/job"])
def test_every_group_of_version_2_up_to_the_root(root: Path, tightest: str) -> None:
    inside(root, V2 + "/user.slice/job")
    for name in ("", "user.slice", "user.slice/job"):
        v2(root, name, 2_000_000 if name == tightest else "max")
    assert available_bytes(root) == 1_100_000


@pytest.mark.parametrize("tightest", ["", "docker", "docker/a1"])
def test_every_group_of_version_1_up_to_the_root(root: Path, tightest: str) -> None:
    inside(root, V1 + "/docker/a1", V2 + "/")
    for name in ("", "docker", "docker/a1"):
        v1(root, name, 2_000_000 if name == tightest else UNLIMITED)
    assert available_bytes(root) == 1_100_000


def test_what_a_sibling_used_of_the_parents_limit_is_gone(root: Path) -> None:
    inside(root, V2 + "/pod/mine")
    v2(root, "pod", 4_000_000, used=3_500_000)
    v2(root, "pod/mine", 3_000_000, used=200_000)
    v2(root, "pod/other", 1_000, used=1_000)
    assert available_bytes(root) == 600_000


def test_the_limit_at_which_the_kernel_stops_a_group_counts(root: Path) -> None:
    inside(root, V2 + "/job")
    v2(root, "job", 4_000_000, high=2_500_000)
    assert available_bytes(root) == 1_600_000


@pytest.mark.parametrize("name", ["/docker/a1", "/../../other"])
@pytest.mark.parametrize("version", [V1, V2])
def test_a_container_sees_its_own_group_as_the_root(root: Path, version: str, name: str) -> None:
    inside(root, version + name)
    (v1 if version == V1 else v2)(root, "", 2_000_000)
    assert available_bytes(root) == 1_100_000


def test_the_unified_mount_of_a_mixed_system(root: Path) -> None:
    inside(root, V1 + "/a", V2 + "/job")
    v1(root, "a", 4_000_000)
    v2(root, "unified/job", 2_000_000)
    assert available_bytes(root) == 1_100_000


def test_without_groups(root: Path) -> None:
    assert available_bytes(root) == MACHINE
    inside(root, V1 + "/a", V2 + "/")
    assert available_bytes(root) == MACHINE
