"""What a process holds: memory, files, threads; and whether that grows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from hunts.report import Report

_MOST_GROWTH = 0.02


@dataclass(frozen=True)
class Usage:
    """Of a process at one time.

    Attributes:
        seconds: when, since the hunt began.
        resident_mb: anonymous memory.
        files, threads: open ones.
    """

    seconds: float
    resident_mb: float
    files: int
    threads: int

    @classmethod
    def of(cls, pid: int, seconds: float) -> Usage:
        """What a process holds now."""
        folder = Path(f"/proc/{pid}")
        lines = (folder / "status").read_text(encoding="ascii").splitlines()
        words = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
        files = len(list((folder / "fd").iterdir()))
        return cls(seconds, int(words["RssAnon"][0]) / 1024, files, int(words["Threads"][0]))


def judged(report: Report, part: str, usage: list[Usage], warm_up: float) -> dict[str, Any]:
    """Report growth after the warm-up; what the line of JSON says of it.

    The first and the last quarter of the time after the warm-up are compared: medians of memory, and least
    numbers of threads. Nothing is said of a hunt that is shorter than twice the warm-up.
    """
    settled = [one for one in usage if one.seconds > warm_up]
    if not settled or settled[-1].seconds < 2 * warm_up:
        return {"part": part, "judged": False, **_last(usage)}
    quarter = max(1, len(settled) // 4)
    first, last = (
        median(one.resident_mb for one in some) for some in (settled[:quarter], settled[-quarter:])
    )
    if last > first * (1 + _MOST_GROWTH):
        report.found(f"memory: {part} grew from {first:.1f} to {last:.1f} MB after {warm_up:.0f} s")
    before, after = (min(one.threads for one in some) for some in (settled[:quarter], settled[-quarter:]))
    if after != before:
        report.found(f"handles: {part} had {before} threads, then {after}")
    return {
        "part": part,
        "judged": True,
        "first_mb": round(first, 1),
        "last_mb": round(last, 1),
        "tenths_mb": _tenths(settled),
        **_last(usage),
    }


def compare_files(report: Report, part: str, before: Usage, after: Usage) -> None:
    """Report files and sockets that a process without work has more or fewer of than before."""
    if after.files != before.files:
        report.found(
            f"handles: {part} had {before.files} files at {before.seconds:.0f} s, {after.files} at the end"
        )


def _tenths(usage: list[Usage]) -> list[float]:
    """Medians of memory over each tenth: whether growth goes on, or ends."""
    size = max(1, len(usage) / 10)
    starts = [round(size * number) for number in range(min(10, len(usage)))]
    return [
        round(median(one.resident_mb for one in usage[start:stop]), 1)
        for start, stop in zip(starts, [*starts[1:], len(usage)], strict=True)
    ]


def _last(usage: list[Usage]) -> dict[str, Any]:
    if not usage:
        return {}
    return {
        "most_mb": round(max(one.resident_mb for one in usage), 1),
        "files": usage[-1].files,
        "threads": usage[-1].threads,
    }
