"""Tokens that only the sparse verifier has accepted."""

from __future__ import annotations

from dataclasses import dataclass, field

from ovspec.sampling.sampling import Distribution

# Provisional tokens before a commit, where the user did not say.
COMMIT_INTERVALS = (16, 24, 32)


@dataclass(slots=True)
class Provisional:
    """The last tokens of a sequence, those that no dense pass has confirmed.

    Attributes:
        q: what each was drawn from, the sparse verifier's own distribution; `None` under greedy decoding.
        interval: how many there are to be before a dense pass goes over them.
    """

    q: list[Distribution | None] = field(default_factory=list)
    interval: int = COMMIT_INTERVALS[0]

    def __len__(self) -> int:
        return len(self.q)

    def adapt(self, confirmed: int, count: int) -> None:
        """Wait longer after a commit that confirmed all, start over after a correction."""
        longer = (interval for interval in COMMIT_INTERVALS if interval > self.interval)
        self.interval = next(longer, COMMIT_INTERVALS[-1]) if confirmed == count else COMMIT_INTERVALS[0]
