"""The choice of the attention that verification rows take."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Literal

from ovspec_transforms import Selection

Attention = Literal["native", "stock"]


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Which attention verification rows take.

    Attributes:
        backend: "native" routes them to our operation, "stock" takes OpenVINO's operations only.
        selects: whether the graph can select blocks.
        anchor_layers: layers that select, or `None` for the default rule.
        selection: what they go by.
        coverage: share of the estimated attention mass that a selection keeps; 1: the budget alone counts.
        watches: every layer selects and the lists are returned, as `selected_blocks`, but attention stays
            dense; for calibration, with "native".
    """

    backend: Attention = "native"
    selects: bool = False
    anchor_layers: tuple[int, ...] | None = None
    selection: Selection = field(default_factory=Selection)
    coverage: float = 1.0
    watches: bool = False

    def __post_init__(self) -> None:
        if self.backend not in ("native", "stock"):
            raise ValueError(f"attention={self.backend!r}: expected 'native' or 'stock'")

    @property
    def graph(self) -> dict[str, object]:
        """What of it decides the graph, in words of JSON; the coverage is an input of every pass."""
        fields = asdict(self)
        del fields["coverage"]
        return fields
