"""Random requests for long, each compared with the same one alone: `tests/hunts/soak.py --seconds 3600`.

Two parts run at once: engines in this process, with every drafter and every mode, cancellations, full caches
and injected faults; and an `ovspec serve` with bad clients (`soak_served.py`). What went wrong is shrunk to a
few requests in a file, which `--replay FILE` runs again.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from hunts.report import Report
from hunts.soak_judge import Problem, problems
from hunts.soak_models import MODELS, Alone, grow
from hunts.soak_requests import Load, random_asks, random_load
from hunts.soak_run import Run
from hunts.soak_shrink import shrink
from hunts.usage import Usage, compare_files, judged

from ovspec.devices.freed_memory import give_back_freed_memory

_SERVED = Path(__file__).with_name("soak_served.py")
# Findings that are shrunk; more of a kind say nothing new.
_SHRUNK = 5
_SHRINK_SECONDS = 120.0
_WARM_UP = 300.0


class Soak:
    """The part in this process.

    Args:
        folder: for files of findings.
        hang: seconds without an output after which requests hang.
    """

    def __init__(self, report: Report, seed: int, faults: bool, folder: Path, hang: float) -> None:
        self.report, self.seed, self.faults, self.folder = report, seed, faults, folder
        self.alone = Alone()
        self.usage: list[Usage] = []
        self._current: tuple[Run, Load] | None = None
        self._hang = hang
        threading.Thread(target=self._watch, name="soak watch", daemon=True).start()

    def hunt(self, seconds: float) -> None:
        """Run lists of requests until the time is over."""
        # Short hunts take a few models, and no time to compile the others.
        models = list(MODELS) if seconds > 60 else Random(self.seed).sample(list(MODELS), 4)
        if seconds > 2 * _WARM_UP:  # else their memory grows as they meet larger requests
            for name in models:
                grow(name)
        asks = random_asks(Random(self.seed))
        number = 0
        while self.report.seconds < seconds:
            rng = Random(f"{self.seed} {number}")
            self.one(random_load(rng, models[number % len(models)], asks, self.faults))
            number += 1
            if number % 20 == 0:
                gc.collect()
                give_back_freed_memory()
                self.usage.append(Usage.of(os.getpid(), self.report.seconds))

    def one(self, load: Load) -> list[Problem]:
        """Run a list of requests, and report what is wrong with it."""
        # What kills the process is found in this file.
        load.write(self.folder / "soak-last.json", "the last requests before the end")
        found, counts = self._run(load)
        for name, number in counts.items():
            self.report.count(name, number)
        for problem in found[:1]:
            number = len(self.report.findings)
            file = self.folder / f"soak-{self.seed}-{number}.json"
            load.write(file, problem.text)
            self.report.found(f"{problem.kind}: {problem.text[:300]}", replay=str(file))
            if number < _SHRUNK:
                self._shrunk(load, problem).write(file, problem.text)
        return found

    def _run(self, load: Load) -> tuple[list[Problem], dict[str, int]]:
        run = Run(load)
        self._current = (run, load)
        try:
            run.run()
        finally:
            self._current = None
        return problems(run, self.alone), run.counts

    def _shrunk(self, load: Load, problem: Problem) -> Load:
        def fails(smaller: Load) -> bool:
            tries = 5 if smaller.threads else 1
            return any(problem.kind == p.kind for _ in range(tries) for p in self._run(smaller)[0])

        return shrink(load, fails, _SHRINK_SECONDS)

    def _watch(self) -> None:
        seen, since = (None, 0), time.monotonic()
        while True:
            time.sleep(1.0)
            current = self._current
            now = (current, current[0].ticks) if current else (None, 0)
            if current is None or now != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > self._hang:
                file = self.folder / f"soak-{self.seed}-hang.json"
                current[1].write(file, "requests hang")
                faulthandler.dump_traceback(all_threads=True)
                self.report.found(f"hang: no output for {self._hang:.0f} s", replay=str(file))
                self.report.end()
                os._exit(1)


def served_part(seconds: float, faults: bool) -> subprocess.Popen[str]:
    """The part with a server, as a process of its own."""
    words = [sys.executable, str(_SERVED), "--seconds", str(seconds), *([] if faults else ["--no-faults"])]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def join_served(report: Report, served: subprocess.Popen[str], seconds: float) -> dict[str, Any]:
    """Take what the served part found; its counts."""
    try:
        said, _ = served.communicate(timeout=seconds + 600)
    except subprocess.TimeoutExpired:
        served.kill()
        said = ""
    lines = [line for line in said.splitlines() if line.startswith("{")]
    if not lines:
        report.found(f"served: it ended with {served.returncode} and no result: {said[-300:]}")
        return {}
    result: dict[str, Any] = json.loads(lines[-1])
    for finding in result["findings"]:
        report.found(f"served: {finding['what']}", **{k: v for k, v in finding.items() if k != "what"})
    return {name: result[name] for name in ("counts", "usage") if name in result}


def replay(file: Path, folder: Path, times: int) -> int:
    """Run the requests of a file until something is wrong with them; the exit code."""
    load = Load.read(file)
    report = Report("soak", replay=str(file))
    soak = Soak(report, 0, True, folder, 120.0)
    for _ in range(times):
        found, _ = soak._run(load)
        report.count("runs")
        for problem in found:
            report.found(f"{problem.kind}: {problem.text}")
        if found:
            break
    return report.end()


def main() -> int:
    """Run it as the options say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    parser.add_argument("--no-faults", dest="faults", action="store_false", help="inject no faults")
    parser.add_argument(
        "--no-server", dest="server", action="store_false", help="only the part in this process"
    )
    parser.add_argument("--hang", type=float, default=120.0, help="seconds without an output that are a hang")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="requests of a finding")
    parser.add_argument("--times", type=int, default=20, help="how often FILE is run, if all is well")
    parser.add_argument("--folder", type=Path, default=Path("build/hunts"), help="for files of findings")
    given = parser.parse_args()
    faulthandler.enable()
    logging.getLogger("ovspec").setLevel(logging.CRITICAL)  # of injected faults
    if given.replay:
        return replay(given.replay, given.folder, given.times)
    report = Report("soak", seed=given.seed, faults=given.faults)
    served = served_part(given.seconds, given.faults) if given.server else None
    soak = Soak(report, given.seed, given.faults, given.folder, given.hang)
    soak.hunt(given.seconds)
    settled = [one for one in soak.usage if one.seconds > _WARM_UP]
    if settled:
        compare_files(report, "engine", settled[0], settled[-1])
    usage = judged(report, "engine", soak.usage, _WARM_UP)
    more = join_served(report, served, given.seconds) if served else {}
    return report.end(usage=usage, served=more)


if __name__ == "__main__":
    sys.exit(main())
