"""Report of a graph transformation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransformReport:
    """The outcome of one transformation of one model.

    Attributes:
        name: the transformation.
        changed: friendly names of the nodes it changed, in graph order.
        left: subgraphs that it recognised and did not change, each with the reason.
    """

    name: str
    changed: tuple[str, ...]
    left: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """How many places the transformation changed."""
        return len(self.changed)

    def require(self, expected: int) -> TransformReport:
        """Return the report, or raise when the transformation did not fire `expected` times.

        Raises:
            ValueError: the model does not have the pattern that the caller relies on.
        """
        if self.count != expected:
            raise ValueError(f"{self.name} changed {self.count} places of {expected} in this model")
        return self
