"""Logits processors that depend on the context: suppression, biases, penalties, n-grams, a grammar."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from ovspec.sampling.constraint import Constraint
from ovspec.sampling.ngrams import Ngrams
from ovspec.sampling.sampling import Distribution, SamplingParams, greedy_token, sampling_distribution


class LogitsProcessor:
    """Turns the logits of one sequence into a distribution, given the tokens of its context.

    It stores the set of prompt tokens and the counts of generated tokens. The context of a row of a
    verification pass includes the draft tokens before it (`drafted`); these are counted for that row only, in
    time proportional to their number. Use the same object for target and drafter, so that p and q follow the
    same rules.

    The order is that of OpenVINO GenAI: stop-token suppression, repetition, presence, frequency penalty, then
    the mask of a grammar, then those of `sampling_distribution`. Each penalty is rounded to float32 before
    the next, as there. Biases come before the penalties, as in vLLM, and repeated n-grams behind them.

    Args:
        constraint: of a grammar, which only this object moves.
    """

    __slots__ = (
        *(
            "_biased",
            "_biases",
            "_counts",
            "_ids",
            "_ngrams",
            "_num_prompt",
            "_params",
            "_slots",
            "_stop_ids",
        ),
        *("_tokens", "_used", "constraint"),
    )

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int] | NDArray[np.integer],
        constraint: Constraint | None = None,
    ) -> None:
        self._params = params
        self.constraint = constraint
        self._tokens: list[int] = []
        self._stop_ids = np.array(sorted(params.stop_token_ids), dtype=np.int64)
        self._biased = np.array([token for token, _ in params.logit_bias], dtype=np.int64)
        self._biases = np.array([bias for _, bias in params.logit_bias], dtype=np.float32)
        self._ngrams = Ngrams(params.no_repeat_ngram_size, prompt) if params.excludes_ngrams else None
        # Slots: distinct prompt tokens, then distinct generated tokens in order of appearance, so that
        # removing the newest token frees the last slot. The prompt is not stored if no penalty needs it.
        unique = np.unique(np.asarray(prompt if params.penalises else [], dtype=np.int64))
        if unique.size and unique[0] < 0:
            raise ValueError(
                f"prompt must hold token ids >= 0, got {unique[0]}; pass the tokenizer's own ids"
            )
        self._num_prompt = self._used = unique.size
        self._ids = np.concatenate([unique, np.zeros(64, dtype=np.int64)])
        self._counts = np.zeros(self._ids.size, dtype=np.int64)
        self._slots: dict[int, int] = {int(token): slot for slot, token in enumerate(unique)}

    def fork(self) -> LogitsProcessor:
        """The same context, which grows apart.

        Raises:
            ValueError: there is a grammar.
        """
        if self.constraint is not None:
            raise ValueError("a sequence with a grammar can't be forked")
        other = copy(self)
        other._tokens, other._slots = list(self._tokens), dict(self._slots)
        other._ids, other._counts = self._ids.copy(), self._counts.copy()
        other._ngrams = None if self._ngrams is None else self._ngrams.fork()
        return other

    def extend(self, tokens: Iterable[int]) -> None:
        """Add generated tokens to the context.

        Raises:
            ValueError: a token id is negative, or the grammar does not allow it.
        """
        tokens = list(tokens)
        if self.constraint is not None:
            self.constraint.extend(tokens)
        for token in tokens:
            self._push(token)
        if self._ngrams is not None:
            self._ngrams.extend(tokens)

    def rollback(self, count: int) -> None:
        """Remove the last `count` generated tokens.

        Raises:
            ValueError: fewer tokens were generated.
        """
        if not 0 <= count <= len(self._tokens):
            raise ValueError(
                f"count must be in [0, {len(self._tokens)}], got {count}; only generated tokens can go back"
            )
        if self.constraint is not None:
            self.constraint.rollback(count)
        if self._ngrams is not None:
            self._ngrams.rollback(count)
        for _ in range(count):
            self._pop()

    def distribution(self, logits: NDArray[np.float32], drafted: Sequence[int] = ()) -> Distribution:
        """Distribution of the token that follows the context and `drafted`.

        Args:
            logits: `[vocab]` float32, not modified.
            drafted: draft tokens between the context and this row.

        Raises:
            ValueError: the logits are unusable, or shorter than a token id of the context.
        """
        return sampling_distribution(self.process(logits, drafted), self._params)

    def argmax(self, logits: NDArray[np.float32], drafted: Sequence[int] = ()) -> int:
        """Most probable token after the context and `drafted`; arguments and errors as for `distribution`."""
        if self.constraint is not None and self._changes_nothing(len(drafted)):
            token = greedy_token(logits)
            if self.constraint.allows(drafted, token):  # spares the mask
                return token
        return greedy_token(self.process(logits, drafted))

    @property
    def leaves_logits(self) -> bool:
        """Whether `process` gives logits back as they are, now and for all later tokens."""
        return self.constraint is None and self._changes_nothing(0)

    def _changes_nothing(self, drafted: int) -> bool:
        """Whether no token is suppressed, raised, lowered or excluded behind so many draft tokens."""
        changes = self._params.penalises or self._biased.size > 0 or self._ngrams is not None
        return not changes and not self._suppresses(drafted)

    def _suppresses(self, drafted: int) -> bool:
        return self._stop_ids.size > 0 and len(self._tokens) + drafted < self._params.min_new_tokens

    def process(self, logits: NDArray[np.float32], drafted: Sequence[int] = ()) -> NDArray[np.float32]:
        """Logits `[vocab]` after all processors; the argument itself if none applies."""
        if self.constraint is None and self._changes_nothing(len(drafted)):
            return logits
        row: NDArray[np.float32] = logits.copy()
        if self._suppresses(len(drafted)):
            row[_inside(self._stop_ids, row)] = -np.inf
        if self._biased.size:
            known = self._biased < row.size  # a drafter's vocabulary may be smaller
            row[self._biased[known]] += self._biases[known]
        if self._params.penalises:
            self._penalise_behind(row, drafted)
        if self._ngrams is not None:
            repeated = self._ngrams.repeated(drafted)
            row[repeated[repeated < row.size]] = -np.inf
        if self.constraint is not None:
            mask = self.constraint.mask(drafted)
            np.copyto(row[: mask.size], np.float32(-np.inf), where=~mask[: row.size])
            row[mask.size :] = -np.inf
        return row

    def _penalise_behind(self, row: NDArray[np.float32], drafted: Sequence[int]) -> None:
        """Penalise a row that stands behind `drafted`."""
        counted = 0
        try:
            for token in drafted:
                self._push(token)
                counted += 1
            self._penalise(row)
        finally:
            for _ in range(counted):
                self._pop()

    def _penalise(self, row: NDArray[np.float32]) -> None:
        params = self._params
        ids = _inside(self._ids[: self._used], row)
        if params.repetition_penalty != 1.0:
            penalty = np.float32(params.repetition_penalty)
            values = row[ids]
            with np.errstate(over="ignore"):
                penalised = np.where(values >= 0, values / penalty, values * penalty)
            # A tiny penalty must not end the step, which other requests share.
            row[ids] = np.minimum(penalised, np.finfo(np.float32).max)
        counts = self._counts[: self._used]
        # The other two penalties ignore prompt tokens that were not generated.
        generated = np.flatnonzero(counts)
        ids, counts = ids[generated], counts[generated]
        if params.presence_penalty != 0.0:
            self._lower(row, ids, np.float64(np.float32(params.presence_penalty)))
        if params.frequency_penalty != 0.0:
            self._lower(row, ids, np.float64(np.float32(params.frequency_penalty)) * counts)

    def _lower(
        self, row: NDArray[np.float32], ids: NDArray[np.int64], amount: np.float64 | NDArray[np.float64]
    ) -> None:
        """Take `amount` from `row[ids]`, or from its magnitude, in place, with one rounding."""
        values = row[ids].astype(np.float64)
        less = values - amount
        subtracts = self._params.subtracts_penalties
        row[ids] = less if subtracts else np.where(values >= 0, less, values + amount)

    def _push(self, token: int) -> None:
        token = int(token)
        if token < 0:
            raise ValueError(f"tokens must be ids >= 0, got {token}; pass the ids that were sampled")
        self._tokens.append(token)
        if not self._params.penalises:
            return
        slot = self._slots.get(token)
        if slot is None:
            slot = self._slots[token] = self._used
            if slot == self._ids.size:
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[slot] = token
            self._used += 1
        self._counts[slot] += 1

    def _pop(self) -> None:
        token = self._tokens.pop()
        if not self._params.penalises:
            return
        slot = self._slots[token]
        self._counts[slot] -= 1
        if self._counts[slot] == 0 and slot >= self._num_prompt:
            del self._slots[token]
            self._used -= 1


def _inside(ids: NDArray[np.int64], row: NDArray[np.float32]) -> NDArray[np.int64]:
    if ids.size and int(ids.max()) >= row.size:
        raise ValueError(
            f"logits must cover every token id of context and stop_token_ids, got {row.size} logits and id "
            f"{int(ids.max())}; use logits and ids of the same vocabulary"
        )
    return ids
