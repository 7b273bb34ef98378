"""Drafts of a block whose logits a correction changes from place to place, by the tokens drafted before.

DSpark, DFlash2 and XPress have one. Its step is a small pass for every level of the drafts.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.devices.clock import microseconds
from ovspec.devices.devices import openvino_core
from ovspec.drafters.draft_paths import DraftPaths
from ovspec.drafters.drafter import Proposal
from ovspec.drafters.parallel_draft import BlockLogits
from ovspec.drafters.target_ids import TargetIds
from ovspec.operations.backends import Backends

if TYPE_CHECKING:  # with the exports of all heads
    from ovspec_models.heads import Correction

Rows = NDArray[np.float32]


class CorrectedDrafts:
    """Drafts behind a correction.

    Args:
        correction: of the head.
        backends: the operations that compute the head.
        ids: the target's, of the head's tokens.

    Attributes:
        duration: of the last drafts' passes, microseconds.
    """

    def __init__(
        self,
        correction: Correction,
        backends: Backends,
        ids: TargetIds,
    ) -> None:
        def request(model: ov.Model) -> ov.InferRequest:
            compiled = openvino_core().compile_model(model, backends.device, dict(backends.properties))
            return compiled.create_infer_request()

        self._given = correction.given and request(correction.given)
        self._step = request(correction.step)
        self._reads = {port.get_any_name() for port in correction.step.inputs}
        self._state, self._leads, self._ids = correction.state, correction.leads, ids
        self.duration = 0.0

    def draft(self, blocks: SequenceOf[BlockLogits]) -> list[Proposal]:
        """The drafts of several sequences."""
        self.duration = 0.0
        drafts = [_Draft(block, self._state, self._made(block.states)) for block in blocks]
        self._lead([draft for draft in drafts if draft.number > 0])
        growing = drafts
        while growing:
            logits, confidences = self._pass(growing)
            ends = np.cumsum([len(draft.paths.tokens) for draft in growing])[:-1].tolist()
            spread = self._ids.spread(logits)
            parts = zip(growing, np.split(spread, ends), _split(confidences, ends, len(growing)), strict=True)
            growing = [draft for draft, rows, said in parts if draft.grow(rows, said)]
        return [draft.paths.proposal() for draft in drafts]

    def _made(self, states: Rows | None) -> Rows:
        assert states is not None
        if self._given is None:
            return np.zeros((len(states), 0), np.float32)
        started = microseconds()
        made: Rows = self._given.infer({0: states})[0]
        self.duration += microseconds() - started
        return made

    def _lead(self, drafts: SequenceOf[_Draft]) -> None:
        """The state behind the place of the text's last token, where the first of a block does not draft."""
        if drafts and self._state:
            for draft in drafts:
                draft.go_to(0, self._leads)
            self._pass(drafts)
            for draft in drafts:
                draft.go_to(1, 1)

    def _pass(self, drafts: SequenceOf[_Draft]) -> tuple[Rows, Rows | None]:
        """Corrected logits and confidences of the next level; the paths carry their states on."""
        counts = [len(draft.paths.tokens) for draft in drafts]
        every = {
            "number": np.repeat(np.array([draft.number for draft in drafts], np.int64), counts),
            "given": np.repeat(np.stack([draft.given[draft.number] for draft in drafts]), counts, 0),
            "token": np.concatenate([draft.paths.tokens for draft in drafts]),
            "state": np.concatenate([draft.paths.carried for draft in drafts]),
            "logits": np.repeat(np.stack([draft.logits for draft in drafts]), counts, 0),
        }
        started = microseconds()
        found = self._step.infer({name: rows for name, rows in every.items() if name in self._reads})
        self.duration += microseconds() - started
        results = {port.get_any_name(): value for port, value in found.items()}
        if "next" in results:
            begin = 0
            for draft, count in zip(drafts, counts, strict=True):
                draft.paths.carried = results["next"][begin : begin + count].copy()
                begin += count
        said = results.get("confidence")
        return results["corrected"], None if said is None else said[:, 0]


def _split(rows: Rows | None, ends: list[int], parts: int) -> SequenceOf[Rows | None]:
    return [None] * parts if rows is None else np.split(rows, ends)


class _Draft:
    """The draft of one sequence, at a place of its block.

    Args:
        block: of it.
        state: numbers that a path carries.
        given: f32 `[places, given]`.

    Attributes:
        paths: of the draft.
        given: the same.
        number: of the place in the block.
    """

    def __init__(self, block: BlockLogits, state: int, given: Rows) -> None:
        self.paths = DraftPaths(block.sequence, block.count, len(block.logits), state)
        self.given = given
        self.number = self._first = len(given) - block.drafting
        self._sequence, self._logits = block.sequence, block.logits

    def go_to(self, number: int, leads: int) -> None:
        """Stand at a place before the draft, behind the last token but `leads` - 1 of the text."""
        self.number, self.paths.tokens = number, np.array([self._sequence.tokens[-leads]], np.int64)

    @property
    def logits(self) -> Rows:
        """f32 `[drafted]`, of the place before the correction."""
        row: Rows = self._logits[max(0, self.number - self._first)]
        return row

    def grow(self, logits: Rows, confidences: Rows | None) -> bool:
        """Go to the next place; whether the draft goes on there."""
        self.number += 1
        return self.paths.grow(logits, confidences) and self.number - self._first < len(self._logits)
