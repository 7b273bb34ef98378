"""A head whose cache has entries of the target's true states."""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ovspec.drafters.draft_tree import depth_of
from ovspec.drafters.drafter import Drafter
from ovspec.drafters.joined_states import JoinedStates
from ovspec.generation.sequence import Sequence
from ovspec.passes.tables import FEATURES, Rows
from ovspec.runner.model_runner import ModelRunner
from ovspec.runner.warm_up import warm_up


@dataclass(slots=True)
class _Unread:
    """Features of positions that are no entries of the head's cache yet.

    Attributes:
        begin: the first position.
        features: f32 `[positions, size]`.
    """

    begin: int
    features: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))

    def pass_by(self, count: int) -> None:
        """Drop the first `count` features: the cache has them now. Called after the pass, which may fail."""
        self.begin, self.features = self.begin + count, self.features[count:]


class CachedHead(Drafter):
    """Entry i of the head's cache is made from the target's state at position i and a token.

    What a draft has written is dropped: the entries of accepted tokens are computed from the target's states.

    Args:
        name: of the kind of head.
        runner: the head behind `join`.
        join: makes features of states; `None`: features are states.
        prefill_chunk: rows per pass while a prompt is read.
        positions: of the head; beyond them nothing is proposed.
    """

    reads_states = True
    #: Places between an entry's state and its token.
    shift: ClassVar[int]
    #: `Rows.block` of passes that read entries alone.
    block: ClassVar[int | None] = None

    def __init__(
        self,
        name: str,
        runner: ModelRunner,
        join: JoinedStates | None,
        prefill_chunk: int,
        positions: int | None = None,
    ) -> None:
        self.name = name
        self.runner = runner
        self._join = join
        self._chunk = prefill_chunk
        self._positions = math.inf if positions is None else positions

    def observe(self, sequence: Sequence, begin: int, states: NDArray[np.float32]) -> None:
        """Keep the features of true states, and read them where they fill blocks, which others may share."""
        unread = self._unread(sequence)
        if begin > unread.begin + len(unread.features):
            return  # a part of the text was read unseen: there is nothing to draft from
        # A copy, as the states are valid during the call.
        features = np.array(states) if self._join is None else self._join(states)
        if begin > unread.begin:
            features = np.concatenate([unread.features[: begin - unread.begin], features])
        unread.begin, unread.features = min(unread.begin, begin), features
        sequence.draft.rollback(min(sequence.draft.length, unread.begin))
        while (known := self._known(sequence)) > self.runner.block_size:
            # The last entry waits for the draft that begins with it.
            count = min(known - 1, self._chunk)
            self.runner.forward([self._entries(sequence, count)])
            unread.pass_by(count)
        self._publish(sequence)

    def limit_cache(self, cached_bytes: int) -> None:
        """Limit what ended sequences leave in the head's cache."""
        self.runner.limit_cache(None, cached_bytes)

    def warm_up(self, rows: int) -> None:
        """Compute the head's largest pass."""
        shape = self.runner.compiled.input(FEATURES).get_partial_shape()
        warm_up(self.runner, rows, shape[-1].get_length())

    def begin(self, sequence: Sequence) -> None:
        """Begin with what both caches have of the sequence: without states there are no entries."""
        tokens, draft = sequence.tokens, sequence.draft
        if not draft.length:
            self.runner.blocks.share(draft, tokens[self.shift :], self._seed(tokens))
        both = min(draft.length, sequence.target.length)
        draft.rollback(both)
        sequence.target.rollback(both)
        sequence.draft_states.pop(self.name, None)

    def release(self, sequence: Sequence) -> None:
        """Free the blocks of the sequence in the head's cache."""
        self._publish(sequence)
        self.runner.release(sequence.draft)
        sequence.draft_states.pop(self.name, None)

    def _drafting(self, sequences: SequenceOf[Sequence], counts: SequenceOf[int]) -> dict[int, int]:
        """How many tokens the sequences may draft whose states are there, by their index."""
        limits = (
            min(count, depth_of(sequence), self._positions - len(sequence.tokens))
            for sequence, count in zip(sequences, counts, strict=True)
        )
        return {i: int(limit) for i, limit in enumerate(limits) if limit > 0 and self._is_ready(sequences[i])}

    def _drop_drafts(self, sequences: SequenceOf[Sequence], indices: Iterable[int]) -> None:
        """Leave true entries only in the caches of these sequences."""
        for index in indices:
            sequence = sequences[index]
            sequence.draft.rollback(min(sequence.draft.length, len(sequence.tokens) - 1))
            self._publish(sequence)

    def _pass_by(self, sequences: SequenceOf[Sequence], indices: Iterable[int]) -> None:
        for index in indices:
            self._unread(sequences[index]).pass_by(self._known(sequences[index]))

    def _publish(self, sequence: Sequence) -> None:
        blocks = self.runner.blocks
        if blocks.publishes(sequence.draft, sequence.confirmed - self.shift):
            tokens = sequence.tokens[: sequence.confirmed]
            blocks.publish(sequence.draft, tokens[self.shift :], self._seed(tokens))

    def _seed(self, tokens: SequenceOf[int]) -> bytes:
        """What blocks of entries depend on beside the tokens of the entries."""
        return self.name.encode() + np.array(tokens[: self.shift], np.int64).tobytes()

    def _unread(self, sequence: Sequence) -> _Unread:
        unread: _Unread | None = sequence.draft_states.get(self.name)
        if unread is None:
            unread = sequence.draft_states[self.name] = _Unread(sequence.draft.length)
        return unread

    def _known(self, sequence: Sequence) -> int:
        """How many entries can be read: the token of the last may not be known yet."""
        unread = self._unread(sequence)
        return max(0, min(len(unread.features), len(sequence.tokens) - self.shift - unread.begin))

    def _is_ready(self, sequence: Sequence) -> bool:
        """Whether there are entries to begin a draft with, and none is missing before them or after."""
        begin, count = self._unread(sequence).begin, self._known(sequence)
        return begin == sequence.draft.length and count > 0 and begin + count == len(sequence.tokens) - 1

    def _entries(self, sequence: Sequence, count: int, returned: int = 0) -> Rows:
        """The rows of the next entries; logits and states of the last `returned` are wanted."""
        unread = self._unread(sequence)
        begin, features = unread.begin + self.shift, unread.features[:count, np.newaxis]
        tokens = np.array(sequence.tokens[begin : begin + count], np.int64)
        return Rows(sequence.draft, tokens, returned, states=returned, features=features, block=self.block)
