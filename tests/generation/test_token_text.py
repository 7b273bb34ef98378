"""Names of tokens: what each adds behind others, with its bytes."""

from __future__ import annotations

import random
from pathlib import Path

import openvino_genai
import pytest
from generation.conftest import Known, Open
from generation.small_tokenizers import write
from hypothesis import given, settings
from hypothesis import strategies as st

from ovspec.generation.token_text import TokenText


@given(st.lists(st.integers(0, 10**4), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_bytes_of_tokens_give_the_tokenizers_text(known: Known, numbers: list[int]) -> None:
    tokens = [number % (max(known.tokenizer.get_vocab().values()) + 1) for number in numbers]
    assert known.text._bytes is not None and known.text.decode(tokens) == known.decode(tokens)


@pytest.mark.parametrize("seed", [0, 3, 4])
def test_spaces_are_known_in_any_order_of_the_vocabulary(tmp_path: Path, seed: int) -> None:
    """Which token is tried for a first space, and which for a cleaned one, must not depend on their ids."""
    pieces = ["'", ".", ",", "i", "m", "a", "said", "the", "##m", "##s", "##t", "##ing", "upon"]
    random.Random(seed).shuffle(pieces)
    write("WordPiece", tmp_path, pieces)
    tokenizer = openvino_genai.Tokenizer(str(tmp_path))
    text = TokenText(tokenizer)
    for line in ("I'm", "i ' m", "said .", "' the", "m , a . ' upon"):
        ids = tokenizer.encode(line, add_special_tokens=False).input_ids.data.reshape(-1).tolist()
        assert text.decode(ids) == str(tokenizer.decode(ids))


def test_bytes_that_are_no_text(of_kind: Open) -> None:
    """Detokenizers of OpenVINO and Python do not agree on how many unknown characters they are."""
    known, drawn = of_kind("SentencePiece"), random.Random(0)
    byte = [known.tokenizer.get_vocab()[f"<0x{value:02X}>".encode()] for value in range(256)]
    edges = [0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2, 0xE0, 0xED, 0xF0, 0xF4, 0xF5, 0xFF]
    rows = [[byte[drawn.choice(edges)] for _ in range(6)] for _ in range(20_000)]
    assert [known.text.decode(row) for row in rows] == known.tokenizer.decode(rows)


@pytest.mark.parametrize("by_graph", [False, True])
def test_a_name_is_what_a_token_adds(of_kind: Open, by_graph: bool) -> None:
    known = of_kind("SentencePiece")
    text = known.text
    if by_graph:
        text = TokenText(known.tokenizer)
        text._bytes = None
    vocabulary = known.tokenizer.get_vocab()
    space, the_i, half = vocabulary["▁".encode()], vocabulary[b"I"], vocabulary[b"<0xE4>"]
    before = known.encode("Once")
    pieces = text.pieces(before, [space, the_i, half, vocabulary[b"</s>"], vocabulary[b"<0x0A>"]])
    assert [tuple(piece) for piece in pieces] == [
        (" ", b" "),
        ("I", b"I"),
        ("bytes:\\xe4", b"\xe4"),
        ("</s>", b"</s>"),
        ("\n", b"\n"),
    ]
    # The text of a message begins without the space.
    spaced = next(token for name, token in vocabulary.items() if name[:3] == "▁".encode() and len(name) > 3)
    (alone,), (behind,) = text.pieces([], [spaced]), text.pieces(before, [spaced])
    assert behind.text == " " + alone.text and behind.data == b" " + alone.data


def test_names_where_spaces_are_cleaned_up(of_kind: Open) -> None:
    known = of_kind("byte-level that cleans up")
    vocabulary = known.tokenizer.get_vocab()
    stops = known.text.pieces(known.encode("done"), [vocabulary[b" ."], vocabulary[b"."]])
    assert [piece.text for piece in stops] == [".", "."]
    assert known.text.pieces(known.encode("I '"), [vocabulary[b"m"]])[0].text == "m"
    first, second = (vocabulary[name] for name in (b"\xf0\x9f", b"\x99\x82"))
    assert known.text.pieces([first], [second])[0] == ("bytes:\\x99\\x82", b"\x99\x82")


def test_a_token_that_only_the_model_has_has_no_text(known: Known) -> None:
    tokens = known.encode("upon")
    assert known.text.decode([*tokens, 10**6]) == known.decode(tokens)
    assert known.text.pieces(tokens, [10**6])[0] == ("", b"")
