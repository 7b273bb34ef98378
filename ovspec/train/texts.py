"""What a head is trained on: token ids of texts, those held out, the draft's vocabulary, batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Tokens of the shortest text from which an entry, its token and the one after it can be made.
SHORTEST = 4


@dataclass(frozen=True, slots=True)
class Text:
    """Token ids of a text.

    Attributes:
        tokens: i64 `[tokens]`.
        prompt: so many of them are read only: a head learns to draft those behind them.
    """

    tokens: NDArray[np.int64]
    prompt: int = 0

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def entries(self) -> NDArray[np.int64]:
        """Where drafts begin: entry j knows tokens 0 to j + 1; the first completed token is never drafted."""
        return np.arange(max(0, self.prompt - 1), len(self) - 1)

    def pieces(self, length: int) -> Iterator[Text]:
        """Parts of so many tokens, without those in which there is nothing to learn.

        A prompt that does not fit before its completion loses its first tokens.
        """
        first = min(self.prompt, max(0, len(self) - length))
        for begin in range(first, len(self), length):
            piece = Text(self.tokens[begin : begin + length], max(0, self.prompt - begin))
            if len(piece) >= max(SHORTEST, piece.prompt + 2):
                yield piece


@dataclass(frozen=True, slots=True)
class TrainingTexts:
    """Texts to learn from; those held out are measured only."""

    train: list[Text]
    held_out: list[Text]

    @classmethod
    def split(cls, texts: Sequence[Text], max_length: int, held_out: float, seed: int) -> TrainingTexts:
        """Hold out a share of the texts, drawn by `seed`, and cut the rest into pieces of `max_length`.

        Texts that are too short to learn from are left out.

        Raises:
            ValueError: nothing is left to learn from, or nothing to measure.
        """
        pieces = [found for text in texts if (found := [*text.pieces(max_length)])]
        order = np.random.default_rng(seed).permutation(len(pieces))
        count = max(1, round(len(pieces) * held_out))
        if len(pieces) < 2:
            raise ValueError(
                f"--data: {len(texts)} texts, of which {len(pieces)} are long enough; give two or more of at "
                f"least {SHORTEST} tokens each, and of 2 behind a prompt"
            )
        if count == len(pieces):
            raise ValueError(
                f"held_out={held_out}: it leaves none of {len(pieces)} texts to learn from; give a lower one"
            )
        train, held = (
            [piece for index in sorted(chosen) for piece in pieces[index]]
            for chosen in (order[count:].tolist(), order[:count].tolist())
        )
        return cls(train, held)

    def check_tokens(self, vocab_size: int) -> None:
        """Refuse texts that have tokens of another model.

        Raises:
            ValueError: it names the largest token.
        """
        largest = max(int(text.tokens.max()) for text in [*self.train, *self.held_out])
        if largest >= vocab_size:
            raise ValueError(
                f"--data: the texts have token {largest}, the target's tokens are 0 to {vocab_size - 1}; its "
                "folder has the tokenizer of another model, export it again"
            )

    def draft_vocabulary(self, size: int, vocab_size: int) -> NDArray[np.int64]:
        """The `size` tokens that most often are to be drafted, in the order of their ids."""
        learnt = np.concatenate([text.tokens[text.prompt :] for text in self.train])
        counts = np.bincount(learnt, minlength=vocab_size)
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
