"""Attention of the rows under verification: backend and selection."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from ovspec.modes.sparse_prefill import PROMPT_PIECE, SparsePrefill
from ovspec_transforms import Selection

Attention = Literal["native", "stock"]


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Attention of the rows under verification.

    Attributes:
        backend: "native" is VerifyAttention, "stock" uses OpenVINO's operations only.
        selects: whether the graph can select blocks.
        anchor_layers: by the paper's rule the layers that select, or `None` for its default.
        selection: rule by which they select.
        coverage: share of the estimated attention mass that a selection keeps; 1: the budget alone decides.
        watches: whether the graph returns the queries that select, as `selecting_queries`; "native" only.
        prefill: how prompts are read; `None`: densely.
        covers: whether a coverage below 1 can be set later; stock attention needs another graph for it, in
            which a GPU waits more often.
    """

    backend: Attention = "native"
    selects: bool = False
    anchor_layers: tuple[int, ...] | None = None
    selection: Selection = field(default_factory=Selection)
    coverage: float = 1.0
    watches: bool = False
    prefill: SparsePrefill | None = None
    covers: bool = False

    def __post_init__(self) -> None:
        if self.backend not in ("native", "stock"):
            raise ValueError(f"attention={self.backend!r}: expected 'native' or 'stock'")
        rule = self.selection.rule
        if self.selects and self.backend == "stock" and rule != "paper":
            raise ValueError(
                f"rule={rule!r} needs attention='native', which runs on a CPU; use that, or rule='paper'"
            )
        if self.anchor_layers is not None and rule != "paper":
            raise ValueError(
                f"anchor_layers={list(self.anchor_layers)}: with rule={rule!r} every layer selects; leave it "
                "out, or use rule='paper'"
            )
        object.__setattr__(self, "covers", self.backend == "native" or self.covers or self.coverage < 1.0)

    def covering(self, coverage: float) -> AttentionConfig:
        """The same graph with another coverage.

        Raises:
            ValueError: a share below 1, and a graph of stock operations that was made without one.
        """
        if coverage < 1.0 and not self.covers:
            raise ValueError(
                f"coverage={coverage:g}: this pipeline's graph selects by a budget alone; make another "
                "LLMPipeline for it"
            )
        return replace(self, coverage=coverage)

    def serves(self, other: AttentionConfig) -> bool:
        """Whether the graph of this configuration can run the other one; its coverage may have to be set."""
        same = replace(other, coverage=self.coverage, covers=self.covers) == self
        return same and (self.covers or other.coverage >= 1.0)

    def check_block_size(self, found: int, expected: int, device: str) -> None:
        """Refuse to select where a device's blocks have another number of tokens than the graph was made for.

        Raises:
            ValueError: it names both numbers.
        """
        if found != expected and self.selects:
            raise ValueError(
                f"device {device} has {found} tokens in a block with these properties, "
                f"selection expects {expected}; leave the properties out, or use verify='dense'"
            )

    @property
    def rule_text(self) -> str:
        """How the graph selects, for messages."""
        anchors = "" if self.anchor_layers is None else f", anchor_layers={list(self.anchor_layers)}"
        ends = (self.selection.sink_blocks, self.selection.local_blocks)
        return f"rule={self.selection.rule!r}{anchors}, sink_blocks={ends[0]}, local_blocks={ends[1]}"

    @property
    def prompt_piece(self) -> int:
        """Tokens of a prompt that are read in one pass and shared all or none; 1: any number."""
        return 1 if self.prefill is None else PROMPT_PIECE

    @property
    def graph(self) -> dict[str, object]:
        """The settings that determine the graph, as JSON values; amounts are inputs of every pass."""
        fields = asdict(self)
        del fields["coverage"], fields["prefill"]
        return fields
