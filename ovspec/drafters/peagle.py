"""P-EAGLE: an EAGLE-3 head that drafts all tokens in one pass.

Behind the entries of the text stand entries of mask tokens, with a learnt vector in the place of the target's
states; each sees those before it, and gives the token behind its own.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ovspec.drafters.joined_states import JoinedStates
from ovspec.drafters.parallel_head import ParallelHead
from ovspec.drafters.target_ids import TargetIds
from ovspec.generation.sequence import Sequence
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner


class PEagleHead(ParallelHead):
    """Drafts from the last entry of the text and from masks.

    Args:
        block: tokens of a draft and the one before it, and the mask token.
        masked: f32 `[1, size]`, features of states that are not known yet.
        others: as of `ParallelHead`.
    """

    shift = 1

    def __init__(
        self,
        runner: ModelRunner,
        join: JoinedStates,
        ids: TargetIds,
        block: tuple[int, int],
        masked: NDArray[np.float32],
        prefill_chunk: int,
        positions: int | None = None,
    ) -> None:
        super().__init__("eagle3", runner, join, ids, block[0] - 1, prefill_chunk, positions)
        self._mask_token, self._masked = block[1], masked

    def _rows(self, sequence: Sequence, length: int) -> Rows:
        rows = self._entries(sequence, self._known(sequence))
        assert rows.features is not None
        masks = np.full(length - 1, self._mask_token, np.int64)
        return replace(
            rows,
            tokens=np.concatenate([rows.tokens, masks]),
            features=np.concatenate([rows.features, np.repeat(self._masked[np.newaxis], len(masks), 0)]),
            sampled=length,
        )
