"""A hunt: many hostile inputs, each made from a seed and a number, in a process that may crash or hang.

The parent process watches a child that tries the inputs; where the child dies or stands still, the number of
the input is known, and another child goes on behind it. Everything follows from seed and number: a hunt may
be cut into parts (`--start`, `--count`), and an input is made again from these two.
"""

from __future__ import annotations

import gc
import json
import mmap
import random
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hunts.fuzz_sanitizers import said_by_sanitizer

from ovspec.devices.freed_memory import give_back_freed_memory

#: An input: what JSON can hold.
Given = dict[str, Any]

#: Seconds without progress after which a child hangs.
HANGS = 30.0
#: Share of its memory that a child may gain behind the first half of its inputs. Fewer inputs prove nothing:
#: caches fill at first.
GROWTH, WARM_UP, LEAST_INPUTS = 0.02, 0.5, 200_000
MOST_FINDINGS = 20
_TOLD_EVERY = 500
_PROGRESS_SECONDS = 60.0
_PLACE = struct.Struct("QQdd")  # number, inputs so far, memory when warm, memory now


class Finding(Exception):  # noqa: N818
    """What must not happen, in one line: its kind, a colon, and what was seen."""


class Hunt(Protocol):
    """Makes inputs and tries them.

    Attributes:
        slow: seconds of processor time that one input may take.
    """

    slow: float

    def make(self, chance: random.Random) -> Given:
        """An input."""

    def attempt(self, given: Given) -> str:
        """Try it; a word for what came of it.

        Raises:
            Exception: a finding.
        """

    def smaller(self, given: Given) -> Iterator[Given]:
        """Inputs that are a step smaller, the smallest steps last."""


@dataclass
class Report:
    """What a hunt did."""

    hunt: str
    seed: int
    start: int
    inputs: int = 0
    seconds: float = 0.0
    processor_seconds: float = 0.0
    peak_mb: float = 0.0
    growth: float | None = None
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[Given] = field(default_factory=list)

    def lines(self) -> str:
        """A line of JSON, and one for people."""
        rate = self.inputs / max(self.seconds, 1e-9)
        grown = "too few inputs for it" if self.growth is None else f"{self.growth:+.1%}"
        values = {**vars(self), "outcomes": dict(self.outcomes.most_common()), "per_second": round(rate, 1)}
        values["findings"] = [{k: f[k] for k in ("number", "what", "file")} for f in self.findings]
        came = ", ".join(f"{name} {count:,}" for name, count in self.outcomes.most_common(8))
        return (
            f"{json.dumps(values)}\n"
            f"{self.hunt}: {self.inputs:,} inputs from {self.start:,} on in {self.seconds:.0f} s "
            f"({rate:,.0f} a second, {self.processor_seconds:.0f} s of processor time), seed {self.seed}: "
            f"{len(self.findings)} findings; {came}; "
            f"memory at most {self.peak_mb:,.0f} MB, growth {grown}"
        )


def chance_of(seed: int, hunt: str, number: int) -> random.Random:
    """The random numbers of one input."""
    return random.Random(f"{seed}/{hunt}/{number}")


def memory_mb() -> float:
    """Memory of this process behind what it can give back; pages of files, which come and go, don't count."""
    gc.collect()
    give_back_freed_memory()
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("RssAnon:")[2].split()[0]) / 1024


def signature(error: BaseException) -> str:
    """Type and place of an error, so that each fault is told once."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "ovspec" in f.filename and "hunts" not in f.filename] or list(frames)
    place = f"{Path(own[-1].filename).name}:{own[-1].name}" if own else "?"
    if isinstance(error, Finding):
        return str(error).partition(":")[0]  # the words that are the same for all of its kind
    return f"{type(error).__name__} in {place}"


def one_line(error: BaseException) -> str:
    """An error for people."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


class Child:
    """Tries inputs in this process; `place` is memory that the parent reads.

    It writes a line of JSON for each finding, and one at the end.
    """

    def __init__(self, hunt: Hunt, name: str, seed: int, place: mmap.mmap) -> None:
        self._hunt, self._name, self._seed, self._place = hunt, name, seed, place
        self._seen: set[str] = set()
        self._outcomes: Counter[str] = Counter()
        self._warm, self._began = 0.0, time.monotonic()

    def run(self, start: int, count: int, seconds: float) -> None:
        """Try `count` inputs from number `start` on, or those that `seconds` allow."""
        number = start
        while self.goes_on(number, start, count, seconds):
            self.attempt(number, self._hunt.make(chance_of(self._seed, self._name, number)))
            number += 1
        self.end(number, start)

    def goes_on(self, number: int, start: int, count: int, seconds: float) -> bool:
        """Whether this input is to be tried; the parent is told that it is."""
        spent = time.monotonic() - self._began
        if number >= start + count or spent >= seconds:
            return False
        if sum(self._outcomes.values()) >= _TOLD_EVERY:
            self._tell_outcomes()
        if not self._warm and max((number - start) / count, spent / seconds) >= WARM_UP:
            self._warm = memory_mb()
        self._place[: _PLACE.size] = _PLACE.pack(number, number - start, self._warm, 0.0)
        return True

    def end(self, number: int, start: int) -> None:
        """Say what came of all inputs."""
        self._place[: _PLACE.size] = _PLACE.pack(number, number - start, self._warm, memory_mb())
        self._tell_outcomes()
        self._say({"end": True})

    def attempt(self, number: int, given: Given) -> None:
        """Try an input."""
        began = time.process_time()
        try:
            outcome = self._hunt.attempt(given)
            if (took := time.process_time() - began) > self._hunt.slow:
                raise Finding(f"slow: {took:.1f} s of processor time")
        except Exception as error:
            found = signature(error)
            self._outcomes["finding"] += 1
            if found in self._seen:
                return
            self._seen.add(found)
            trace = traceback.format_exc()
            small = given if found == "slow" else shrink(self._hunt, given, found)
            self._say(
                {"number": number, "what": one_line(error), "where": found, "trace": trace, "input": small}
            )
        else:
            self._outcomes[outcome] += 1

    def _tell_outcomes(self) -> None:
        self._say({"outcomes": dict(self._outcomes)})
        self._outcomes.clear()

    def _say(self, value: Given) -> None:
        print(json.dumps(value), flush=True)


def shrink(hunt: Hunt, given: Given, found: str, seconds: float = 10.0) -> Given:
    """A smaller input with the same finding."""
    ends = time.monotonic() + seconds
    again = True
    while again:
        again = False
        for small in hunt.smaller(given):
            if time.monotonic() > ends:
                return given
            try:
                hunt.attempt(small)
            except Exception as error:
                if signature(error) == found:
                    given, again = small, True
                    break
    return given


def watch(
    name: str,
    command: Callable[[int, int, int, float, str], list[str]],
    seed: int,
    start: int,
    count: int,
    seconds: float,
    folder: Path,
) -> Report:
    """Run a hunt in children until it is done.

    Args:
        command: starts a child, by the seed, the first number, how many, for how long, and the file
            of its place.
        folder: where findings are saved.
    """
    report, began, used = Report(name, seed, start), time.monotonic(), _processor_seconds()
    number, ends = start, start + count
    while number < ends and (left := seconds - (time.monotonic() - began)) > 0:
        with tempfile.NamedTemporaryFile() as file:
            file.write(bytes(_PLACE.size))
            file.flush()
            place = mmap.mmap(file.fileno(), _PLACE.size)
            number = _one_child(
                report, command(seed, number, ends - number, left, file.name), place, number, folder
            )
        if len(report.findings) >= MOST_FINDINGS:
            break
    report.inputs, report.seconds = number - start, round(time.monotonic() - began, 1)
    report.processor_seconds = round(_processor_seconds() - used, 1)
    return report


def _one_child(report: Report, command: list[str], place: mmap.mmap, first: int, folder: Path) -> int:
    """Run one child to its end; the number behind its last input."""
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(command, stdout=said, stderr=errors)
        why = _wait(report, child, place)
        said.seek(0)
        lines = [json.loads(line) for line in said if line.startswith("{") and line.endswith("}\n")]
        errors.seek(0)
        tail = errors.read()[-9000:]
    why = said_by_sanitizer(tail) or why
    number, done, warm, now = _PLACE.unpack(place[: _PLACE.size])
    report.peak_mb = max(
        report.peak_mb, round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024, 1)
    )
    known = {finding["where"] for finding in report.findings}
    for line in lines:
        if "outcomes" in line:
            report.outcomes.update(line["outcomes"])
        elif "where" in line and line["where"] not in known:
            save(report, line, folder)
    if not lines or "end" not in lines[-1]:
        if not done and number == 0:
            raise SystemExit(f"{report.hunt}: the child could not start:\n{tail}")
        report.outcomes["finding"] += 1
        if why not in known:
            save(report, {"number": number, "what": why, "where": why, "trace": tail, "input": None}, folder)
        return int(number) + 1
    if done >= LEAST_INPUTS and warm:
        report.growth = round(now / warm - 1, 4)
        if report.growth > GROWTH:
            what = f"growth: {warm:.0f} MB in the middle of {done} inputs, {now:.0f} MB behind them"
            save(report, {"number": first, "what": what, "where": what, "trace": "", "input": None}, folder)
    return int(number)


def _wait(report: Report, child: subprocess.Popen[Any], place: mmap.mmap) -> str:
    """Wait for the end of a child, or end one that stands still; what happened, in words."""
    last, since, told = b"", time.monotonic(), time.monotonic()
    while child.poll() is None:
        time.sleep(0.05)
        if time.monotonic() - told > _PROGRESS_SECONDS:
            told, (number, *_) = time.monotonic(), _PLACE.unpack(place[: _PLACE.size])
            print(f"{report.hunt}: at {number}, {len(report.findings)} findings", file=sys.stderr, flush=True)
        if (now := place[: _PLACE.size]) != last or not any(now):
            # Before its first input a child loads models.
            last, since = now, time.monotonic() if any(now) else since
        if time.monotonic() - since > (HANGS if any(now) else 10 * HANGS):
            child.send_signal(signal.SIGABRT)  # its faulthandler says where it stands
            child.wait(30)
            return f"hang: no end within {HANGS:.0f} s"
    code = child.returncode
    return f"crash: the process ended with {signal.Signals(-code).name if code < 0 else f'code {code}'}"


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def save(report: Report, finding: Given, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{report.hunt}-{report.seed}-{finding['number']}.json"
    finding = {"hunt": report.hunt, "seed": report.seed, **finding, "file": str(path)}
    path.write_text(json.dumps(finding, indent=1), encoding="utf-8")
    report.findings.append(finding)
    print(f"{report.hunt}: FOUND at {finding['number']}: {finding['what']}; saved as {path}", file=sys.stderr)
