"""What a head is trained on: token ids of texts, those held out, the draft's vocabulary, batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Text = NDArray[np.int64]
#: Tokens of the shortest text from which an entry, its token and the one after it can be made.
SHORTEST = 4


@dataclass(frozen=True, slots=True)
class TrainingTexts:
    """Token ids of texts, i64 `[tokens]` each; those held out are measured only."""

    train: list[Text]
    held_out: list[Text]

    @classmethod
    def split(
        cls, texts: Sequence[Sequence[int]], max_length: int, held_out: float, seed: int
    ) -> TrainingTexts:
        """Hold out a share of the texts, drawn by `seed`, and cut the rest into pieces of `max_length`.

        Raises:
            ValueError: nothing is left to learn from, or nothing to measure.
        """
        order = np.random.default_rng(seed).permutation(len(texts))
        count = max(1, round(len(texts) * held_out))
        train, held = (
            [
                np.array(texts[index][begin : begin + max_length], np.int64)
                for index in sorted(chosen)
                for begin in range(0, len(texts[index]), max_length)
                if len(texts[index]) - begin >= SHORTEST
            ]
            for chosen in (order[count:].tolist(), order[:count].tolist())
        )
        if not train or not held:
            raise ValueError(
                f"--data: {len(texts)} texts, of which {count} are held out; give two or more of at least "
                f"{SHORTEST} tokens each"
            )
        return cls(train, held)

    def check_tokens(self, vocab_size: int) -> None:
        """Refuse texts that have tokens of another model.

        Raises:
            ValueError: it names the largest token.
        """
        largest = max(int(text.max()) for text in [*self.train, *self.held_out])
        if largest >= vocab_size:
            raise ValueError(
                f"--data: the texts have token {largest}, the target's tokens are 0 to {vocab_size - 1}; its "
                "folder has the tokenizer of another model, export it again"
            )

    def draft_vocabulary(self, size: int, vocab_size: int) -> NDArray[np.int64]:
        """The `size` tokens that occur most often in the training texts, in the order of their ids."""
        counts = np.bincount(np.concatenate(self.train), minlength=vocab_size)
        return np.sort(np.argsort(-counts, kind="stable")[:size])

    def batches(self, batch_tokens: int, seed: int, epoch: int) -> list[list[int]]:
        """Numbers of an epoch's training texts in an order of its own, those of alike length together."""
        rng = np.random.default_rng((seed, epoch))
        order = rng.permutation(len(self.train)).tolist()
        lengths = [len(text) for text in self.train]
        batches: list[list[int]] = []
        # Sorting stretches of the shuffled order pads little, and still mixes the texts anew in every epoch.
        for begin in range(0, len(order), 512):
            stretch = sorted(order[begin : begin + 512], key=lambda number: lengths[number])
            batches += packed(stretch, lengths, batch_tokens)
        return [batches[index] for index in rng.permutation(len(batches)).tolist()]


def packed(numbers: Sequence[int], lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Texts in batches of at most so many tokens, padding counted; a longer text is a batch of its own."""
    batch: list[int] = []
    for number in numbers:
        longest = max(lengths[member] for member in [*batch, number])
        if batch and longest * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch
