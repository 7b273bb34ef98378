"""Hunts for faults with hostile inputs: `make fuzz`, or `python tests/hunts/fuzz.py bodies`."""

from __future__ import annotations

import argparse
import faulthandler
import json
import mmap
import secrets
import sys
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from hunts.fuzz_hunt import Child, chance_of, watch
from hunts.fuzz_sanitizers import sanitized

FOLDER = Path("build/hunts")


# Where each hunt is; what they import takes seconds, and some of it belongs to one hunt alone.
HUNTS = {
    "bodies": ("fuzz_bodies", "Bodies"),
    "files": ("fuzz_files", "ManyFiles"),
    "guided": ("fuzz_guided", "Guided"),
    "operations": ("fuzz_operations", "Operations"),
    "threads": ("fuzz_threads", "Threads"),
}
# Those that run something else than a child of this file.
OTHERS = {"schema": ("fuzz_schema", "hunt_schema"), "race": ("fuzz_race", "find_planted_race")}
#: Hunts that load a native library with sanitizers; the CPU plugin does not run beside the address sanitizer.
SANITIZED = ("operations", "threads", "race")


def main() -> int:
    """Hunt; 1 where something was found."""
    options = _options()
    if options.replay:
        return _replay(options.replay)
    if options.place:
        _be_child(options)
        return 0
    found = 0
    for name in options.hunts:
        library = options.library if name in SANITIZED else None
        limits = (options.seed, options.start, options.count, options.seconds, FOLDER)
        if name in OTHERS:
            report = _load(name)(*limits, sanitized(library))
        else:
            report = watch(name, partial(_command, sanitized(library), name), *limits)
        print(report.lines(), flush=True)
        found += len(report.findings)
    return int(found > 0)


def _load(name: str) -> Any:
    module, thing = (HUNTS | OTHERS)[name]
    return getattr(import_module(f"hunts.{module}"), thing)


def _command(
    before: list[str], name: str, seed: int, start: int, count: int, seconds: float, place: str
) -> list[str]:
    """A child that tries inputs."""
    limits = {"seed": seed, "start": start, "count": count, "seconds": seconds, "place": place}
    return [*before, sys.executable, __file__, name, *(f"--{key}={value}" for key, value in limits.items())]


def _be_child(options: argparse.Namespace) -> None:
    faulthandler.enable(all_threads=True)
    (name,) = options.hunts
    with Path(options.place).open("r+b") as file:
        hunt = _load(name)()
        child = Child(hunt, name, options.seed, mmap.mmap(file.fileno(), 0))
        limits = (options.start, options.count, options.seconds)
        if name == "guided":
            hunt.run(child, options.seed, *limits)
        child.run(*limits)


def _replay(path: Path) -> int:
    """Try the input of a finding once more, in this process."""
    finding = json.loads(path.read_text(encoding="utf-8"))
    faulthandler.enable()
    hunt, given = _load(finding["hunt"])(), finding["input"]
    if given is None:
        given = hunt.make(chance_of(finding["seed"], finding["hunt"], finding["number"]))
    print(json.dumps(given, indent=1))
    began = time.monotonic()
    print(hunt.attempt(given), f"in {time.monotonic() - began:.2f} s")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("hunts", nargs="*", metavar="HUNT", help=", ".join(HUNTS | OTHERS))
    parser.add_argument("--seconds", type=float, default=1e9, help="of each hunt")
    parser.add_argument("--count", type=int, default=10**9, help="inputs of each hunt")
    parser.add_argument("--start", type=int, default=0, help="number of the first input")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32), help="default: a new one")
    parser.add_argument("--replay", type=Path, help="file of a finding: try its input once more")
    parser.add_argument("--place", help=argparse.SUPPRESS)
    parser.add_argument(
        "--library", type=Path, help="native library with sanitizers, for the hunts of operations"
    )
    options = parser.parse_args()
    if unknown := set(options.hunts) - set(HUNTS | OTHERS):
        parser.error(f"{', '.join(sorted(unknown))}: no hunt; expected {', '.join(HUNTS | OTHERS)}")
    if options.count == 10**9 and options.seconds == 1e9:
        options.seconds = 24.0
    return options


if __name__ == "__main__":
    sys.exit(main())
