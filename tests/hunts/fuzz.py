"""Hunts for faults with hostile inputs: `make fuzz`, or `python tests/hunts/fuzz.py bodies`."""

from __future__ import annotations

import argparse
import json
import mmap
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from hunts.fuzz_hunt import Child, Hunt, prepare_child, watch

FOLDER = Path("build/fuzz")


def bodies() -> Hunt:
    """Bodies of requests."""
    from hunts.fuzz_bodies import Bodies

    return Bodies()


def files() -> Hunt:
    """Files."""
    from hunts.fuzz_files import ManyFiles

    return ManyFiles()


def operations() -> Hunt:
    """Shapes and settings of native operations."""
    from hunts.fuzz_operations import Operations

    return Operations()


HUNTS: dict[str, Callable[[], Hunt]] = {"bodies": bodies, "files": files, "operations": operations}


def main() -> int:
    """Hunt; 1 where something was found."""
    options = _options()
    if options.replay:
        return _replay(options.replay)
    if options.place:
        with Path(options.place).open("r+b") as file:
            prepare_child()
            name = options.hunts[0]
            child = Child(HUNTS[name](), name, options.seed, mmap.mmap(file.fileno(), 0))
            child.run(options.start, options.count, options.seconds)
        return 0
    reports = []
    for name in options.hunts or HUNTS:

        def command(start: int, count: int, seconds: float, place: str, name: str = name) -> list[str]:
            numbers = {
                "seed": options.seed,
                "start": start,
                "count": count,
                "seconds": seconds,
                "place": place,
            }
            return [sys.executable, __file__, name, *(f"--{key}={value}" for key, value in numbers.items())]

        report = watch(name, command, options.seed, options.start, options.count, options.seconds, FOLDER)
        print(report.lines(), flush=True)
        reports.append(report)
    return int(any(report.findings for report in reports))


def _replay(path: Path) -> int:
    """Try the input of a finding once more, in this process."""
    finding = json.loads(path.read_text(encoding="utf-8"))
    prepare_child()
    hunt = HUNTS[finding["hunt"]]()
    given = finding["input"]
    if given is None:
        from hunts.fuzz_hunt import chance_of

        given = hunt.make(chance_of(finding["seed"], finding["hunt"], finding["number"]))
    print(json.dumps(given, indent=1))
    began = time.monotonic()
    print(hunt.attempt(given), f"in {time.monotonic() - began:.2f} s")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("hunts", nargs="*", metavar="HUNT", help=f"{', '.join(HUNTS)}; default: all")
    parser.add_argument("--seconds", type=float, default=1e9, help="of each hunt")
    parser.add_argument("--count", type=int, default=10**9, help="inputs of each hunt")
    parser.add_argument("--start", type=int, default=0, help="number of the first input")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32), help="default: a new one")
    parser.add_argument("--replay", type=Path, help="file of a finding")
    parser.add_argument("--place", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.hunts) - set(HUNTS):
        parser.error(f"{', '.join(sorted(unknown))}: no hunt; expected {', '.join(HUNTS)}")
    if options.count == 10**9 and options.seconds == 1e9:
        options.seconds = 20.0
    return options


if __name__ == "__main__":
    sys.exit(main())
