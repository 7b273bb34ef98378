"""Scores of an answer's text against its references, as pure functions from 0 to 1."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WORD = re.compile(r"[^\W_]+")
_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")


def rouge_l(text: str, references: Sequence[str]) -> float:
    """ROUGE-L (Lin 2004): F1 of the longest common subsequence of words, of the best reference.

    Words are runs of letters and digits in lower case, without stemming.
    """
    return max(_rouge_l(_words(text), _words(reference)) for reference in references)


def exact_match(text: str, answers: Sequence[str]) -> float:
    """Whether the first line is one of the answers, both as SQuAD normalises them."""
    found = normalised(_first_line(text))
    return float(any(found == normalised(answer) for answer in answers))


def f1(text: str, answers: Sequence[str]) -> float:
    """F1 of the words of the first line and of the best answer, both as SQuAD normalises them."""
    found = normalised(_first_line(text)).split()
    return max(_f1(found, normalised(answer).split()) for answer in answers)


def number(text: str, answers: Sequence[str]) -> float:
    """Whether the last number of the text equals that of an answer; commas between digits do not count."""
    found = last_number(text)
    return float(found is not None and any(found == last_number(answer) for answer in answers))


def contains(text: str, answers: Sequence[str]) -> float:
    """Whether the text has one of the answers as a run of words, both as SQuAD normalises them."""
    found = f" {normalised(text)} "
    return float(any(f" {normalised(answer)} " in found for answer in answers))


Metric = Callable[[str, Sequence[str]], float]
#: By the names that files give them.
METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "rouge_l": rouge_l,
        "exact_match": exact_match,
        "f1": f1,
        "number": number,
        "contains": contains,
    }
)


def normalised(text: str) -> str:
    """Lower case, without punctuation and the articles a, an, the; single spaces between the words."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def last_number(text: str) -> Decimal | None:
    """The last number of a text; `None` where there is none."""
    found = _NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "")) if found else None


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "")


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _rouge_l(found: Sequence[str], expected: Sequence[str]) -> float:
    return _harmonic(_common_subsequence(found, expected), len(found), len(expected))


def _f1(found: Sequence[str], expected: Sequence[str]) -> float:
    if not (found and expected):  # of texts without any word, as SQuAD counts them
        return float(found == expected)
    return _harmonic((Counter(found) & Counter(expected)).total(), len(found), len(expected))


def _harmonic(common: int, found: int, expected: int) -> float:
    """Harmonic mean of `common / found` and `common / expected`."""
    return 2 * common / (found + expected) if common else 0.0


def _common_subsequence(one: Sequence[str], other: Sequence[str]) -> int:
    """Length of the longest common subsequence."""
    lengths = [0] * (len(other) + 1)
    for word in one:
        diagonal = 0
        for index, candidate in enumerate(other, 1):
            above = lengths[index]
            lengths[index] = diagonal + 1 if word == candidate else max(above, lengths[index - 1])
            diagonal = above
    return lengths[-1]
