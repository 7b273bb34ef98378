"""Acceptance traces: a trace decides in a benchmark how many draft tokens are accepted.

Random weights accept no drafts, and different models draft differently. With a trace, two engines verify the
same numbers of draft tokens and accept the same numbers of them, so that their times are comparable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

from ovspec.modes.row_limits import MAX_NUM_ASSISTANT_TOKENS
from ovspec_models.folder.files import replace_file
from ovspec_models.folder.shown import shown

SCHEMA_VERSION = 1
_SYNTHETIC = re.compile(r"synthetic:(\d+)/(\d+)(?:x(\d+))?")


@dataclass(frozen=True, slots=True)
class AcceptanceTrace:
    """Lengths of the drafts of a run, in order; a benchmark repeats them as often as needed.

    Attributes:
        source: origin of the trace, for the output.
        proposed: draft tokens of every verification, 1 to 63; of a tree, those on its longest path.
        accepted: accepted tokens of each draft, 0 to `proposed`.
        confirmed: tokens that dense passes of committed mode confirmed between one correction and the
            next; empty when there was no correction.
        nodes: draft tokens of every tree, `proposed` to 63; empty where all drafts are chains.
    """

    source: str
    proposed: list[int]
    accepted: list[int]
    confirmed: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.proposed or len(self.proposed) != len(self.accepted):
            raise ValueError(
                f"{self.source}: {len(self.proposed)} numbers of proposed and {len(self.accepted)} of "
                "accepted tokens; expected as many of one as of the other, and at least one"
            )
        for index, (proposed, accepted) in enumerate(zip(self.proposed, self.accepted, strict=True)):
            if not 1 <= proposed <= MAX_NUM_ASSISTANT_TOKENS or not 0 <= accepted <= proposed:
                raise ValueError(
                    f"{self.source}: draft {index} has {proposed} proposed and {accepted} accepted tokens; "
                    f"expected 1 to {MAX_NUM_ASSISTANT_TOKENS}, and no more accepted than proposed"
                )
        if self.nodes and len(self.nodes) != len(self.proposed):
            raise ValueError(
                f"{self.source}: {len(self.nodes)} numbers of nodes for {len(self.proposed)} drafts; "
                "expected as many, or none"
            )
        for index, (proposed, nodes) in enumerate(zip(self.proposed, self.nodes, strict=False)):
            if not proposed <= nodes <= MAX_NUM_ASSISTANT_TOKENS:
                raise ValueError(
                    f"{self.source}: draft {index} has {nodes} nodes and a path of {proposed}; expected a "
                    f"number from {proposed} to {MAX_NUM_ASSISTANT_TOKENS}"
                )
        if any(tokens < 0 for tokens in self.confirmed):
            raise ValueError(
                f"{self.source}: confirmed has {min(self.confirmed)}, expected numbers of at least 0"
            )

    @classmethod
    def of(cls, text: str) -> AcceptanceTrace:
        """The trace that `--acceptance` names.

        `synthetic:A/N` accepts A of N tokens, always; `synthetic:A/DxN` A of the D levels of a tree of N
        nodes; all else is a file.
        """
        found = _SYNTHETIC.fullmatch(text)
        if found:
            return cls(text, [int(found[2])], [int(found[1])], nodes=[int(found[3])] if found[3] else [])
        if text.startswith("synthetic"):
            raise ValueError(
                f"--acceptance {text}: expected synthetic:A/N, e.g. synthetic:3/4, or synthetic:A/DxN "
                "for trees of N nodes"
            )
        return cls.load(Path(text))

    @classmethod
    def load(cls, path: Path) -> AcceptanceTrace:
        """Read a file that `save` wrote."""
        remedy = "record one with `ovspec bench trace`, or give synthetic:A/N"
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ValueError(f"--acceptance {path}: {error.strerror}; {remedy}") from error
        except (ValueError, RecursionError) as error:
            raise ValueError(f"--acceptance {path} is no JSON ({error}); {remedy}") from error
        if not isinstance(body, dict) or body.get("schema_version") != SCHEMA_VERSION:
            raise ValueError(f"--acceptance {path}: no trace of schema_version {SCHEMA_VERSION}; {remedy}")
        body.setdefault("nodes", [])  # of traces recorded before there were trees
        names = ("proposed", "accepted", "confirmed", "nodes")
        lists = {name: _integers(path, name, body.get(name)) for name in names}
        return cls(f"{path.name}: {body.get('source', 'unknown')}", **lists)

    def save(self, path: Path) -> None:
        """Write the trace atomically."""
        body = {"schema_version": SCHEMA_VERSION, **asdict(self)}
        replace_file(path, (json.dumps(body) + "\n").encode())

    def drafts(self) -> Iterator[tuple[int, int, int]]:
        """Proposed and accepted tokens and nodes of each draft, repeated without end."""
        return cycle(zip(self.proposed, self.accepted, self.nodes or self.proposed, strict=True))

    def tokens_per_pass(self) -> float:
        """Tokens that a verification yields, the correction or bonus token included."""
        return 1.0 + sum(self.accepted) / len(self.accepted)


def _integers(path: Path, name: str, value: Any) -> list[int]:
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise ValueError(f"--acceptance {path}: {name} is {shown(value)}, expected a list of whole numbers")
    return value


class Confirmations:
    """Replays `AcceptanceTrace.confirmed`: decides how many tokens a dense pass confirms."""

    def __init__(self, trace: AcceptanceTrace) -> None:
        self._runs = cycle(trace.confirmed) if trace.confirmed else None
        self._left = next(self._runs) if self._runs else 0

    def take(self, tokens: int) -> int:
        """Number of confirmed tokens out of `tokens` provisional ones; fewer means a correction."""
        if self._runs is None:
            return tokens
        if tokens <= self._left:
            self._left -= tokens
            return tokens
        confirmed, self._left = self._left, next(self._runs)
        return confirmed
