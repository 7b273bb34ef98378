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
    for calls, place in ((0, "a loop"), (2, "calls at the same time")):
        library = "ctypes.CDLL(str(ovspec_ops.extension_path()))"
        code = f"import ctypes, ovspec_ops; {library}.ovspec_planted_race({calls})"
        done = subprocess.run([*before, sys.executable, "-c", code], capture_output=True, text=True)
        if "data race" in done.stderr:
            report.outcomes[f"planted race found in {place}"] = 1
        else:
            what = f"the thread sanitizer does not find a planted race in {place}"
            save(
                report,
                {"number": calls, "what": what, "where": what, "trace": done.stderr, "input": None},
                folder,
            )
        report.inputs += 1
    report.seconds = round(time.monotonic() - began, 1)
    return report
