"""What one pass has computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.passes.pass_stats import PassStats
from ovspec_transforms import BOUNDARY_STATES, DRAFT_TOKENS


class ReadsBlocks(Protocol):
    """What chooses blocks of the context."""

    def blocks_read(self, request: ov.InferRequest, index: int) -> list[float] | None:
        """As `PassResult.blocks_read`."""


@dataclass(frozen=True, slots=True)
class PassResult:
    """The results of one pass; its arrays are valid until the next pass of the model.

    Attributes:
        logits: f32 `[sampled rows of all sequences, vocab]`; empty where the pass drafts.
        stats: measurements; the duration alone where the pass drafts.
        request: whose outputs they are.
        selection: what chose blocks in the pass, if anything does.
    """

    logits: NDArray[np.float32]
    stats: PassStats
    request: ov.InferRequest
    selection: ReadsBlocks | None = None

    @property
    def duration(self) -> float:
        """Microseconds inside the model."""
        return self.stats.duration

    @property
    def states(self) -> NDArray[np.float32]:
        """Hidden states f32 `[rows whose states were asked for, size]` of a model that returns them."""
        states: NDArray[np.float32] = self.output(BOUNDARY_STATES)  # type: ignore[assignment]
        return states

    @property
    def drafts(self) -> NDArray[np.int32]:
        """Tokens i32 `[most drafted, sequences]` of a pass that drafts.

        -1 behind those that a sequence was to draft, and where logits are not finite.
        """
        drafts: NDArray[np.int32] = self.output(DRAFT_TOKENS)  # type: ignore[assignment]
        return drafts

    def output(self, name: str) -> NDArray[np.generic]:
        """Another output of the model."""
        data: NDArray[np.generic] = self.request.get_tensor(name).data
        return data

    def blocks_read(self, index: int) -> list[float] | None:
        """As `NativeSelection.blocks_read`; `None` too where the graph does not select."""
        return self.selection.blocks_read(self.request, index) if self.selection else None
