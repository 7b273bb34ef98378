"""The target's ids of a head's tokens: a head may draft some of the target's tokens only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ovspec_models.folder.head_info import HeadInfo
from ovspec_transforms import HeadParts


class TargetIds:
    """Spreads logits of a head over the target's vocabulary.

    Args:
        vocab_size: of the target.
        ids: i64 `[draft vocabulary]`, the target's id of each of the head's tokens; `None`: it has the
            target's tokens.
    """

    def __init__(self, vocab_size: int, ids: NDArray[np.int64] | None = None) -> None:
        self._ids, self._vocab_size = ids, vocab_size
        self._full = np.zeros((0, vocab_size), np.float32)

    @classmethod
    def of(cls, info: HeadInfo, parts: HeadParts, vocab_size: int) -> TargetIds:
        """Those of a head's output `d2t`; without one it drafts all of the target's tokens.

        Args:
            info: of the head's folder.
            parts: of its graph.
            vocab_size: of the target.

        Raises:
            ValueError: a head with fewer tokens and no such output, or one for another target.
        """
        if parts.offsets is None:
            if parts.drafted != vocab_size:
                raise ValueError(
                    f"'{info.folder}' drafts {parts.drafted} of the target's {vocab_size} tokens and has no "
                    "d2t, which says of which; export the head again"
                )
            return cls(vocab_size)
        ids = np.arange(parts.drafted)
        if parts.offsets.shape != ids.shape:
            raise ValueError(
                f"'{info.folder}': d2t has the shape {list(parts.offsets.shape)}, the head {parts.drafted} "
                "tokens"
            )
        ids = ids + parts.offsets
        if ids.min() < 0 or ids.max() >= vocab_size or len(np.unique(ids)) < len(ids):
            raise ValueError(
                f"'{info.folder}' is a head for another target: d2t names token {ids.max()} or one token "
                f"twice, the target's vocabulary is {vocab_size}"
            )
        return cls(vocab_size, ids)

    def spread(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Logits over the target's vocabulary, valid until the next pass; unknown tokens have -inf."""
        if self._ids is None:
            return logits
        if len(self._full) < len(logits):
            self._full = np.full((len(logits), self._vocab_size), -np.inf, np.float32)
        full = self._full[: len(logits)]
        full[:, self._ids] = logits
        return full
