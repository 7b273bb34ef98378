"""Random small models by ovspec and by transformers: `python tests/hunts/differential.py --seconds 600`.

Each case is a family with random sizes, a weight format, and three ways to draft. Greedy tokens in f32 are
those of transformers; in the default precision drafted texts are those of plain decoding. A difference is
shrunk to a small model in a file, which `--replay FILE` runs again.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import math
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1]))

from hunts.differential_cases import Case, random_case, smaller
from hunts.differential_check import Difference, RefusedError, differences, export
from hunts.report import Report

from ovspec_models import demo_pair_path

_SHRINK_SECONDS = 240.0
_SHRUNK = 5


class Differential:
    """The hunt.

    Args:
        folder: for files of findings.
    """

    def __init__(self, report: Report, folder: Path) -> None:
        self.report, self.folder = report, folder

    def one(self, case: Case) -> None:
        """Compare one case, and report a difference."""
        case.write(self.folder / "differential-last.json", "the last case before the end")
        counts: Counter[str] = Counter()
        found = self.run(case, counts)
        self.report.counts.update(counts)
        self.report.count("cases")
        for difference in found[:1]:
            number = len(self.report.findings)
            file = self.folder / f"differential-{self.report.settings.get('seed', 0)}-{number}.json"
            case.write(file, difference.text)
            model = f"{case.family} {case.sizes} {case.weights}"
            self.report.found(f"{difference.kind}: {difference.text[-600:]}; {model}", replay=str(file))
            if number < _SHRUNK:
                self._shrunk(case, difference).write(file, difference.text)

    def run(self, case: Case, counts: Counter[str]) -> list[Difference]:
        """What differs; a refusal is counted."""
        with tempfile.TemporaryDirectory() as name:
            try:
                ir = export(case, Path(name))
                # Its own draft, or one that is wrong nearly always.
                own = case.tiny.sizes["vocab_size"] != 4096 or len(case.sizes) % 2
                return differences(case, ir, ir if own else demo_pair_path() / "draft", counts)
            except RefusedError as error:
                counts[f"refused: {str(error)[:60]}"] += 1
                return []
            except Exception as error:
                text = "".join(traceback.format_exception(error)[-3:])
                return [Difference(f"{type(error).__name__}", text[-1500:])]
            finally:
                gc.collect()

    def _shrunk(self, case: Case, difference: Difference) -> Case:
        ends, changed = time.monotonic() + _SHRINK_SECONDS, True
        while changed:
            changed = False
            for one in smaller(case):
                if time.monotonic() > ends:
                    return case
                if one != case and any(difference.kind == d.kind for d in self.run(one, Counter())):
                    case, changed = one, True
                    break
        return case


def main() -> int:
    """Run it as the options say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, help="default: 60, or what --count takes")
    parser.add_argument("--count", type=int, help="cases at most")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    parser.add_argument("--replay", type=Path, metavar="FILE", help="the case of a finding")
    parser.add_argument("--folder", type=Path, default=Path("build/hunts"), help="for files of findings")
    given = parser.parse_args()
    # Their telemetry forks the process for each export; it is silent in CI.
    os.environ.setdefault("JENKINS_URL", "none")
    warnings.simplefilter("ignore")
    if given.replay:
        report = Report("differential", replay=str(given.replay))
        hunt = Differential(report, given.folder)
        counts: Counter[str] = Counter()
        for difference in hunt.run(Case.read(given.replay), counts):
            report.found(f"{difference.kind}: {difference.text}")
        report.counts.update(counts)
        return report.end()
    report = Report("differential", seed=given.seed)
    hunt = Differential(report, given.folder)
    seconds = given.seconds or (math.inf if given.count else 60.0)
    for number in itertools.count():
        if number == given.count or report.seconds > seconds:
            break
        hunt.one(random_case(Random(f"{given.seed} {number}")))
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
