"""What a hunt prints: a line a minute and for each finding, and at the end one of JSON and one for people."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from ovspec.eval.machine import processor

_ROOT = Path(__file__).parents[2]
_EVERY = 60.0


def commit() -> str:
    """The commit of this checkout, with "+" where tracked files differ from it; empty without git."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=_ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")


class Report:
    """Counts and findings of one hunt; any thread may add to them.

    Args:
        hunt: its name.
        settings: what another run needs to be the same, such as a seed.
    """

    def __init__(self, hunt: str, **settings: Any) -> None:
        self.hunt, self.settings = hunt, settings
        self.counts: Counter[str] = Counter()
        self.findings: list[dict[str, Any]] = []
        self.began = self._shown = time.monotonic()
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        """Since the hunt began."""
        return time.monotonic() - self.began

    def count(self, name: str, number: int = 1) -> None:
        """Count something, and print a line if the last one is a minute old."""
        with self._lock:
            self.counts[name] += number
            due = time.monotonic() - self._shown >= _EVERY
            if due:
                self._shown = time.monotonic()
                self._say(f"{self.seconds:.0f} s, {self._shown_counts()}, {len(self.findings)} findings")

    def found(self, what: str, **details: Any) -> None:
        """Add a finding and print it at once; `details` go into the line of JSON."""
        with self._lock:
            self.findings.append({"what": what, **details})
            self._say(f"FOUND {what}")

    def end(self, **more: Any) -> int:
        """Print the last two lines; the exit code."""
        line = {
            "hunt": self.hunt,
            "commit": commit(),
            **self.settings,
            "seconds": round(self.seconds),
            "processor": processor(),
            "counts": dict(sorted(self.counts.items())),
            **more,
            "findings": self.findings,
        }
        print(json.dumps(line), flush=True)
        result = f"{len(self.findings)} findings" if self.findings else "no finding"
        self._say(f"{result} in {self.seconds:.0f} s, {self._shown_counts()}")
        return int(bool(self.findings))

    def _shown_counts(self) -> str:
        return ", ".join(f"{name} {number}" for name, number in sorted(self.counts.items())) or "nothing"

    def _say(self, text: str) -> None:
        print(f"{self.hunt}: {text}", flush=True)
