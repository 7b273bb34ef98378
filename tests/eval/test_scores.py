"""Scores of answers: against values by hand, and against their definitions."""

from __future__ import annotations

from decimal import Decimal
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovspec.eval.scores import contains, exact_match, f1, last_number, normalised, number, rouge_l

WORDS = st.lists(st.sampled_from("abcd"), max_size=12)


@pytest.mark.parametrize(
    ("text", "references", "expected"),
    [
        # Lin 2004, section 3: sequences of 4 words with a common one of 3, and of 2.
        ("police kill the gunman", ["police killed the gunman"], 3 / 4),
        ("the gunman kill police", ["police killed the gunman"], 2 / 4),
        # cat sat on mat, of 6 and of 8 words.
        ("The cat sat on a mat.", ["A cat, the black one, sat on mat"], 2 * 4 / (6 + 8)),
        ("The cat sat on the mat.", ["nothing", "the CAT sat-on the mat"], 1.0),
        ("", ["a word"], 0.0),
        ("...", ["a word"], 0.0),
        ("zwölf Äpfel", ["Zwölf äpfel!"], 1.0),
        # One letter in two forms, and vowel signs, which are no letters of their own.
        ("cafe\u0301", ["caf\u00e9"], 1.0),
        ("नमस्ता", ["नमस्ते"], 0.0),
        # 5 common characters of 8 and 5.
        ("北京是中国的首都。", ["北京是首都。"], 2 * 5 / (8 + 5)),
    ],
)
def test_rouge_l_by_hand(text: str, references: list[str], expected: float) -> None:
    assert rouge_l(text, references) == pytest.approx(expected)


@given(WORDS, WORDS)
def test_rouge_l_is_f1_of_the_longest_common_subsequence(one: list[str], other: list[str]) -> None:
    @cache
    def common(i: int, j: int) -> int:
        if i == 0 or j == 0:
            return 0
        if one[i - 1] == other[j - 1]:
            return common(i - 1, j - 1) + 1
        return max(common(i - 1, j), common(i, j - 1))

    length = common(len(one), len(other))
    precision, recall = length / max(1, len(one)), length / max(1, len(other))
    expected = 2 * precision * recall / (precision + recall) if length else 0.0
    assert rouge_l(" ".join(one), [" ".join(other)]) == pytest.approx(expected)


def test_answers_are_normalised_as_squad_does() -> None:
    assert normalised("The  U.S. army's (an) Apple") == "us armys apple"
    assert exact_match("\n the Denver Broncos!\nThey won.", ["Carolina", "Denver Broncos"]) == 1.0
    assert exact_match("It was the Denver Broncos", ["Denver Broncos"]) == 0.0
    # 2 common words of 4 and 2: precision 1/2, recall 1.
    assert f1("It was the Denver Broncos", ["Carolina", "Denver Broncos"]) == pytest.approx(2 / 3)
    assert f1("Denver Denver", ["Denver Broncos"]) == pytest.approx(1 / 2)
    assert f1("", ["Denver"]) == 0.0
    assert contains("the answer: 48,213.", ["48213"]) == 1.0
    assert contains("the answer: 482134", ["48213"]) == contains("", ["48213"]) == 0.0
    assert contains("It was the Zebra, of course.", ["no", "a zebra"]) == 1.0
    assert contains("born in A.D. 1066", ["AD 1066"]) == 1.0 and contains("zebras", ["zebra"]) == 0.0


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("“北京”。", "北京"),
        ("¿París?", "parís"),
        ("الرياض،", "الرياض"),
        ("Paris\u2019s", "Paris's"),
        ("cafe\u0301", "caf\u00e9"),
    ],
)
def test_answers_of_all_scripts_are_normalised(text: str, answer: str) -> None:
    assert exact_match(text, [answer]) == f1(text, [answer]) == contains(f"x {text}", [answer]) == 1.0


def test_characters_of_scripts_without_spaces_are_words() -> None:
    assert contains("中国的首都是北京。", ["北京"]) == contains("เมืองหลวงคือกรุงเทพ", ["กรุงเทพ"]) == 1.0
    assert contains("中国的首都是北京。", ["京北"]) == exact_match("是北京", ["北京"]) == 0.0
    assert f1("是北京", ["北京"]) == pytest.approx(2 * 2 / (3 + 2))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from 10-12 of COVID-19, in 2024-05-12", "12"),
        ("7 - 12 is -5", "-5"),
        ("x=\u22125", "-5"),
        ("-.5", "-0.5"),
        ("It is...5", "5"),
        ("₹1,23,456.50", "123456.5"),
        ("1,2345", "2345"),
    ],
)
def test_signs_and_commas_of_numbers(text: str, expected: str) -> None:
    assert last_number(text) == Decimal(expected)


def test_the_last_number_counts() -> None:
    assert number("3 + 4 = 7 dollars, so $1,007.50.", ["1007.5"]) == 1.0
    assert number("It is 7. No, 8.", ["7"]) == 0.0
    assert number("no number", ["7"]) == 0.0
    assert last_number("12,34") == 34 and last_number("-1,234") == -1234
