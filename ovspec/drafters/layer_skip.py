"""`layer_skip`: the target itself drafts with some of its layers (Draft & Verify, arXiv 2309.08168).

Which ones is chosen as the text goes on, as CLaSp does (arXiv 2505.24196): the set of `count` layers whose
last state of the last accepted token has the highest cosine to that of all layers. A dynamic programme finds
it, layer by layer: for each number of layers left out so far it keeps one state only, the best.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ovspec.drafters.drafter import Proposal
from ovspec.drafters.sparse_self import SparseSelfDrafter
from ovspec.generation.sequence import Sequence
from ovspec.modes.row_limits import MAX_VERIFY_ROWS
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner
from ovspec_models.folder.sparse_verify import SparseVerify

States: TypeAlias = NDArray[np.float32]
Run: TypeAlias = Callable[[tuple[int, ...], States | None], States]

# Tokens of a sequence after which the layers are chosen anew.
_INTERVAL = 64


class LayerSkipDrafter(SparseSelfDrafter):
    """Drafts with some layers of the target, for several sequences at once.

    All sequences of a pass go through the same layers: those whose likenesses add up highest.

    Args:
        target: the target, whose graph must be able to leave layers out and to give its last states.
        share: of the layers that are left out, as of `LayerSkip`.
        sparse: what the other layers may read; `None`: everything.

    Attributes:
        layers: those that draft; `None` before the first draft.

    Raises:
        ValueError: the target's cache or attention can't verify trees, which choosing needs; a share that
            leaves no layer.
    """

    name = "layer_skip"

    def __init__(self, target: ModelRunner, share: float = 0.5, sparse: SparseVerify | None = None) -> None:
        super().__init__(target, sparse)
        if target.why_no_trees:
            raise ValueError(f"drafter='layer_skip': {target.why_no_trees}")
        assert target.computed_layers is not None
        caches = (spec.name.partition(".") for spec in target.cache.specs)
        # By the paper's rule an anchor's list of blocks is read by the layers after it.
        shares = sparse is not None and target.attention.selection.rule == "paper"
        self._anchors = {int(number) for name, _, number in caches if shares and name == "key_summary"}
        self._number = target.computed_layers.layers
        wanted = max(1, round(share * self._number))
        most = min(self._number - 1, MAX_VERIFY_ROWS - 1)
        if wanted > most:
            raise ValueError(
                f"share={share}: that leaves out {wanted} of {self._number} layers, expected {most} at most; "
                f"give at most {most / self._number:.2f}"
            )
        self._skipped = min(wanted, self._number - len(self._anchors))
        self.layers: tuple[int, ...] | None = None

    def _draft(self, sequences: SequenceOf[Sequence], counts: SequenceOf[int]) -> dict[int, Proposal]:
        """After choosing layers where that is due."""
        drafting = [sequence for sequence, count in zip(sequences, counts, strict=True) if count > 0]
        if any(self._is_due(sequence) for sequence in drafting) and self._has_room(drafting):
            self._choose(drafting)
        return {} if self.layers is None else super()._draft(sequences, counts)

    def _rows(self, sequence: Sequence, proposal: Proposal) -> Rows:
        return replace(super()._rows(sequence, proposal), layers=self.layers)

    def would_draft(self, sequence: Sequence) -> bool:
        """Always: a drafting pass leaves layers out."""
        return True

    def _is_due(self, sequence: Sequence) -> bool:
        chosen = sequence.draft_states.get(self.name)
        return chosen is None or len(sequence.tokens) - chosen >= _INTERVAL

    def _has_room(self, sequences: SequenceOf[Sequence]) -> bool:
        """Whether the cache holds the rows of a choice."""
        blocks = self._target.blocks
        missing = sum(blocks.missing(s.target, len(s.tokens) + self._skipped) for s in sequences)
        return blocks.spare is None or missing <= blocks.spare

    def _choose(self, sequences: SequenceOf[Sequence]) -> None:
        """Choose the layers by the last token of each sequence."""

        def run(layers: tuple[int, ...], states: States | None) -> States:
            shape = (len(sequences), 1 if states is None else states.shape[1])
            batch = [
                Rows(
                    sequence.target,
                    np.full(shape[1], sequence.tokens[-1], np.int64),
                    sampled=0,
                    # Each sees the context and itself.
                    parents=np.full(shape[1], -1, np.int32),
                    states=shape[1],
                    features=None if states is None else states[index][:, np.newaxis],
                    layers=layers,
                )
                for index, sequence in enumerate(sequences)
            ]
            result = self._target.forward(batch)
            self.last_duration += result.duration
            for sequence in sequences:
                sequence.target.rollback(len(sequence.tokens) - 1)
            given = np.array(result.states, np.float32)
            return given.reshape(*shape, -1)

        skipped = choose_layers(run, self._number, self._skipped, self._anchors)
        self.layers = tuple(layer for layer in range(self._number) if layer not in skipped)
        for sequence in sequences:
            sequence.draft_states[self.name] = len(sequence.tokens)


def choose_layers(run: Run, layers: int, count: int, kept: set[int]) -> set[int]:
    """The layers to leave out: CLaSp's dynamic programme.

    Args:
        run: states f32 `[sequences, rows, hidden size]` behind layers; without states before them, of the
            last tokens' embeddings, one row each.
        layers: of the model.
        count: how many are left out, fewer than `layers`.
        kept: layers that are not.

    Returns:
        The set whose last states have the highest cosine to those of all layers, summed over sequences, as
        far as one state per number of layers left out tells.
    """
    states = run((), None)
    ways: list[set[int]] = [set()]
    for layer in range(layers):
        computed = run((layer,), states)
        true = computed[:, :1]
        # Row j has left out j layers: one more than row j - 1 before this layer, or as many as before.
        options: list[list[tuple[States, set[int]]]] = [[] for _ in range(count + 1)]
        for row, way in enumerate(ways):
            options[row].append((computed[:, row], way))
            if row < count and layer not in kept:
                options[row + 1].append((states[:, row], way | {layer}))
        best = [max(found, key=lambda option: _likeness(option[0], true[:, 0])) for found in options if found]
        states, ways = np.stack([state for state, _ in best], axis=1), [way for _, way in best]
    return ways[-1]


def _likeness(states: States, true: States) -> float:
    """Cosines of states to the true ones, f32 `[sequences, hidden size]` each, summed over sequences."""
    norms = np.linalg.norm(states, axis=1) * np.linalg.norm(true, axis=1)
    return float((np.einsum("sh,sh->s", states, true) / norms).sum())
