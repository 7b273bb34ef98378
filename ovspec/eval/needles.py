"""Retrieval over depth and length: one sentence with a number, hidden in a long text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from random import Random

from ovspec.eval.suites import Example
from ovspec_models.folder.jsonl import read_utf8

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
PER_DEPTH = 4
_NAMES = ("Lily", "Tom", "Ben", "Sara", "Max", "Mia", "Jack", "Rose", "Leo", "Anna")
_QUESTION = "What is the secret number of {}? The secret number is"
# Tokens of the needle, the question and a chat template; the text may be shorter by some of them.
_AROUND = 64


def sentences_of(what: str, read: Callable[[], str]) -> list[str]:
    """The sentences of a text that hides needles; `what` is read, for messages.

    Raises:
        ValueError: it can't be read, or has no text.
    """
    found = [sentence for sentence in re.split(r"(?<=[.!?])\s+", read_utf8(what, read)) if sentence.strip()]
    if not found:
        raise ValueError(f"{what} holds no text; give a file with some")
    return found


def needle_examples(
    lengths: Sequence[int], sentences: Sequence[str], count: Callable[[str], int]
) -> Iterator[Example]:
    """Prompts of about these lengths, in tokens, with a needle at every depth; the same ones in every run.

    Args:
        lengths: of the prompts.
        sentences: what hides the needles, repeated where it is too short.
        count: tokens of a text.

    Raises:
        ValueError: a length has no room for a text, or is named twice.
    """
    if len(set(lengths)) < len(lengths):
        raise ValueError(f"--needles {','.join(map(str, lengths))}: name each length once")
    counts = [count(f"{sentence} ") for sentence in sentences]
    for length in lengths:
        room, text = length - _AROUND, list[str]()
        for sentence, tokens in cycle(zip(sentences, counts, strict=True)):
            if tokens > room:
                break
            text.append(sentence)
            room -= max(1, tokens)
        if not text:
            raise ValueError(
                f"--needles {length}: the question and the first sentence need more tokens; give more"
            )
        for turn in range(PER_DEPTH):
            yield from (_needle(length, depth, turn, text) for depth in DEPTHS)


def _needle(length: int, depth: float, turn: int, text: Sequence[str]) -> Example:
    random = Random(f"{length} {depth} {turn}")
    name, secret = random.choice(_NAMES), str(random.randrange(100, 1000))
    at = round(depth * len(text))
    whole = [*text[:at], f"The secret number of {name} is {secret}.", *text[at:]]
    return Example(
        place=f"needle of {length} tokens at depth {depth:g}",
        task=f"needle {length:,}",
        prompt=f"{' '.join(whole)}\n\n{_QUESTION.format(name)}",
        metrics=("contains",),
        answers=(secret,),
        reference=secret,
        group=f"depth {depth:g}",
    )
