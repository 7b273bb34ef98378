"""The demo pair's training and test documents: packed token streams, and two synthetic kinds.

Token ids are Python ints throughout; a packed stream is one uint16 array, documents separated by id 0.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

STREAMS = ("books", "sums", "stories")
NAMES = (
    *("Alice", "Tom", "Lily", "Ben", "Sara", "Max", "Mia", "Jack"),
    *("Rose", "Leo", "Anna", "Sam", "Ivy", "Otto", "Nora", "Hugo"),
)
FIRST_CODE, LAST_CODE = 100, 999


@dataclass(frozen=True, slots=True)
class Corpus:
    """Packed streams by name: ``books``, ``sums`` and ``stories``, for training and held out."""

    train: dict[str, NDArray[np.uint16]]
    held: dict[str, NDArray[np.uint16]]

    @classmethod
    def load(cls, folder: Path) -> Corpus:
        """Read what ``prepare.py`` wrote; SystemExit with the remedy when it is not there."""
        if not (folder / "corpus.json").is_file():
            raise SystemExit(
                f"'{folder}' has no corpus.json; run: python tools/demo/prepare.py DATA {folder}"
            )
        train = {name: np.load(folder / f"{name}.npy") for name in STREAMS}
        return cls(train, {name: np.load(folder / f"{name}_held.npy") for name in STREAMS})


def cut(stream: NDArray[np.uint16], length: int, rng: random.Random) -> list[int]:
    """Return `length` consecutive ids from a random place of `stream`."""
    if len(stream) <= length:
        raise SystemExit(
            f"a stream has {len(stream)} tokens, fewer than the length {length}; prepare more text"
        )
    start = rng.randrange(len(stream) - length)
    return [int(i) for i in stream[start : start + length]]


def facts(rng: random.Random, count: int = 4) -> list[tuple[str, str]]:
    """Return `count` distinct names, each with its secret number."""
    return [(name, str(rng.randint(FIRST_CODE, LAST_CODE))) for name in rng.sample(NAMES, count)]


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text)["input_ids"])


def fact_ids(tokenizer: PreTrainedTokenizerBase, name: str, code: str) -> list[int]:
    return encode(tokenizer, f"\nThe secret number of {name} is {code}.\n")


def question(name: str) -> str:
    return f"\nWhat is the secret number of {name}? The secret number of {name} is"


def recall_document(
    tokenizer: PreTrainedTokenizerBase, books: NDArray[np.uint16], length: int, rng: random.Random
) -> list[int]:
    """Return `length` ids: four facts far apart in book text, then a question and answer for each."""
    known = facts(rng)
    gap = (length - 160) // 5  # 160 ids hold the facts and the questions
    text = cut(books, 5 * gap, rng)
    ids: list[int] = []
    for i, (name, code) in enumerate(known):
        ids += text[i * gap : (i + 1) * gap] + fact_ids(tokenizer, name, code)
    ids += text[4 * gap :]
    rng.shuffle(known)
    for name, code in known:
        ids += encode(tokenizer, f"{question(name)} {code}.")
    return (ids + [0] * length)[:length]


def repeat_document(books: NDArray[np.uint16], vocab_size: int, length: int, rng: random.Random) -> list[int]:
    """Return `length` ids: a passage of a book, or of random tokens, over and over (teaches copying)."""
    size = rng.randint(40, length // 2 - 8)
    passage = (
        cut(books, size, rng) if rng.random() < 0.5 else [rng.randrange(2, vocab_size) for _ in range(size)]
    )
    return (passage * (length // size + 1))[:length]


def windows(stream: NDArray[np.uint16], length: int, count: int) -> Iterator[list[int]]:
    """Yield `count` stretches of `length` ids, evenly spread over `stream` (fewer if it is short)."""
    count = min(count, len(stream) // length)
    for start in np.linspace(0, len(stream) - length, count).astype(int):
        yield [int(i) for i in stream[start : start + length]]
