"""A planted race, so that silence of the thread sanitizer means something."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from hunts.fuzz_hunt import Report, save


def find_planted_race(
    seed: int, start: int, count: int, seconds: float, folder: Path, before: list[str]
) -> Report:
    """Whether the thread sanitizer finds a counter of several threads without a lock.

    Args:
        seed, start, count, seconds: have no meaning here.
        folder: where a report is saved.
        before: the command that loads the library with the sanitizer.
    """
    began, report = time.monotonic(), Report("race", seed, start)
    code = "import ctypes, ovspec_ops as ops; ctypes.CDLL(str(ops.extension_path())).ovspec_planted_race()"
    done = subprocess.run([*before, sys.executable, "-c", code], capture_output=True, text=True)
    report.inputs, report.seconds = 1, round(time.monotonic() - began, 1)
    if "data race" in done.stderr:
        report.outcomes["planted race found"] = 1
    else:
        what = "the thread sanitizer does not find a planted race"
        save(report, {"number": 0, "what": what, "where": what, "trace": done.stderr, "input": None}, folder)
    return report
