"""Scores of an answer's text against its references, as pure functions from 0 to 1."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType

# ASCII's symbols, which SQuAD leaves out with its punctuation.
_SYMBOLS = frozenset("$+<=>^`|~")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
# Thai, Lao, Burmese, Khmer, Chinese and Japanese have no spaces between words: each character is one.
_UNSPACED = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u3096\u30a1-\u30ff\u3400-\u9fff\U00020000-\U0003ffff])"
)
# A hyphen behind a letter or a digit is no sign. Commas stand before three digits, in India also before two.
_NUMBER = re.compile(
    r"(?:(?<!\w)[-\u2212])?(?:(?:\d{1,3}(?:,\d{2,3})*,\d{3}(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])\.\d+)"
)


def rouge_l(text: str, references: Sequence[str]) -> float:
    """ROUGE-L (Lin 2004): F1 of the longest common subsequence of words, of the best reference.

    Words are runs of letters, their marks and digits in lower case, without stemming.
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
    kept = "".join(
        letter
        for letter in _folded(text)
        if letter not in _SYMBOLS and unicodedata.category(letter)[0] != "P"
    )
    return " ".join(_ARTICLES.sub(" ", kept).split())


def last_number(text: str) -> Decimal | None:
    """The last number of a text; `None` where there is none."""
    found = _NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "").replace("\u2212", "-")) if found else None


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "")


def _folded(text: str) -> str:
    """Lower case, one form of each character, and spaces around those that are a word."""
    return _UNSPACED.sub(r" \1 ", unicodedata.normalize("NFKC", text).lower())


def _words(text: str) -> list[str]:
    return "".join(
        letter if unicodedata.category(letter)[0] in "LMN" else " " for letter in _folded(text)
    ).split()


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
