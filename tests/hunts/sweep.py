"""The long sweeps in parts: `python tests/hunts/sweep.py --part 1`, and `--status`.

Each part ends within two hours on two cores. Its result is a line of `build/sweeps.jsonl`, with the commit;
`--status` says which parts are green on this one. This file is also the plugin that chooses a part's tests.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

_ROOT = Path(__file__).parents[2]
_RESULTS = _ROOT / "build" / "sweeps.jsonl"
_PART = "OVSPEC_SWEEP_PART"
# With these a part is not whole.
_LESS = {"-k", "-x", "--collect-only", "--lf", "--last-failed"}
_FAMILIES = "exactness/test_row_invariance.py"
#: What each part holds.
PARTS = (
    "row proofs, every other family",
    "row proofs, the other families",
    "exactness: f64, texts",
    "exactness of sampling",
    "lossless drafters",
    "types, files, schemas, pipelines, servers",
)


def part_of(name: str) -> int:
    """The part of a test, from 1, by the name that pytest gives it."""
    path, _, rest = name.removeprefix("tests/").partition("::")
    if path == _FAMILIES and rest.startswith("test_families["):
        from exactness.grid import FAMILIES

        family = max((f for f in FAMILIES if rest.partition("[")[2].startswith(f"{f}-")), key=len)
        return 1 + FAMILIES.index(family) % 2
    room = path.partition("/")[0]
    return {"exactness": 3, "sampling": 4, "drafters": 5}.get(room, 6)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the part that the environment names."""
    part = int(os.environ[_PART])
    chosen = [item for item in items if part_of(item.nodeid) == part]
    config.hook.pytest_deselected(items=[item for item in items if part_of(item.nodeid) != part])
    items[:] = chosen


class Counts:
    """A plugin that counts outcomes."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test once, and errors beside it as failures."""
        if report.when == "call" or report.outcome != "passed":
            self.counts[report.outcome] += 1


def run(part: int, words: list[str]) -> int:
    """Run a part, with more words for pytest; the exit code."""
    from hunts.report import commit

    from ovspec.eval.machine import processor

    os.environ[_PART] = str(part)
    counted, began, before = Counts(), time.monotonic(), commit()
    options = ["-p", "hunts.sweep", "-m", "sweep", *words]
    code = int(pytest.main([str(_ROOT / "tests"), *options], plugins=[counted]))
    line = {
        "commit": before if commit() == before else f"{before}, changed meanwhile",
        "part": part,
        "holds": PARTS[part - 1],
        "options": words,
        "exit_code": code,
        "counts": dict(counted.counts),
        "seconds": round(time.monotonic() - began),
        "processor": processor(),
    }
    _RESULTS.parent.mkdir(exist_ok=True)
    with _RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    print(json.dumps(line))
    return code


def status() -> int:
    """Print what is known of every part on this commit; 0 where all are green."""
    from hunts.report import commit

    now, known = commit(), dict[int, dict[str, Any]]()
    if _RESULTS.exists():
        for text in _RESULTS.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            if line["commit"] == now and not _LESS.intersection(line["options"]):
                known[line["part"]] = line
    for part, holds in enumerate(PARTS, 1):
        line = known.get(part, {})
        word = "not run" if not line else "red" if line["exit_code"] else "green"
        told = ", ".join(f"{number} {name}" for name, number in line.get("counts", {}).items())
        print(f"{part}: {word:8} {holds}" + (f" ({told}, {line['seconds']} s)" if line else ""))
    green = sum(not line["exit_code"] for line in known.values())
    # "+": files differ from the commit, so nothing is said of it.
    whole = green == len(PARTS) and not now.endswith("+")
    print(f"commit {now}: {'all green' if whole else f'{green} of {len(PARTS)} parts green'}")
    return int(not whole)


def main() -> int:
    """Run it as the options say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", type=int, choices=range(1, len(PARTS) + 1))
    parser.add_argument("--status", action="store_true")
    given, words = parser.parse_known_args()
    if given.part is None and not given.status:
        parser.error("--part N or --status")
    return status() if given.status else run(given.part, words)


if __name__ == "__main__":
    sys.exit(main())
