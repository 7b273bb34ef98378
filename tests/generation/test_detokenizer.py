"""Text while it grows: pieces join to the text of all tokens, whatever the tokenizer does to spaces."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from generation.conftest import Known, Open
from hypothesis import given, settings
from hypothesis import strategies as st
from openvino_genai import GenerationConfig, GenerationFinishReason

from ovspec.engine.requests.request import Request, RequestOutput
from ovspec.generation.detokenizer import IncrementalDetokenizer
from ovspec.generation.generation_config import resolve
from ovspec.generation.stop_strings import StopStrings
from ovspec.generation.token_text import DecodesTokens
from ovspec.pipeline.generation_call import GenerationCall

WORDS = (
    *(
        "I'm",
        "I 'm",
        "I ' m",
        " done",
        " .",
        ".",
        " ,",
        " '",
        " n't",
        " n",
        "'t",
        " 're",
        " 'v",
        "e",
        " ' ' '",
    ),
    *("  ", "\n", "\n\n", "🙂", "é", "世界", "안", "Hello", " upon", " \\", " ?", " !", "�"),
)
Steps = st.lists(st.sampled_from([1, 1, 1, 2, 5]), min_size=1, max_size=8)


def streamed(detokenizer: IncrementalDetokenizer, tokens: list[int], steps: Sequence[int]) -> str:
    """The pieces joined; each must be what the detokenizer's text has new."""
    pieces, at = [], 0
    while at < len(tokens):
        step = steps[len(pieces) % len(steps)]
        pieces.append(detokenizer.update(tokens[at : at + step]))
        assert detokenizer.text.startswith("".join(pieces))
        at += step
    joined = "".join([*pieces, detokenizer.finish()])
    assert joined == detokenizer.text
    return joined


def check(known: Known, decoder: DecodesTokens, tokens: list[int], cut: int, steps: Sequence[int]) -> None:
    alone = IncrementalDetokenizer(decoder)
    assert streamed(alone, tokens, steps) == known.decode(tokens)
    # One end for each token, and none before that of another.
    assert len(alone.ends) == len(tokens) and alone.ends == sorted(alone.ends)
    prompt, whole = tokens[:cut], known.decode(tokens)
    before = known.decode(prompt)
    behind = streamed(IncrementalDetokenizer(decoder, prompt=prompt), tokens[cut:], steps)
    if whole.startswith(before):
        assert before + behind == whole
    else:  # the answer has changed the prompt's end; nothing that is no space is lost
        assert whole.endswith(behind)
        assert (
            (before.rstrip("�") + behind)
            .replace(" ", "")
            .startswith(whole.replace(" ", "")[: len(before.rstrip("�").replace(" ", ""))])
        )


@given(
    st.lists(st.sampled_from(WORDS), max_size=30),
    st.lists(st.integers(0, 200), max_size=20),
    st.floats(0, 1),
    Steps,
)
@settings(max_examples=150, deadline=None)
def test_pieces_join_to_the_text(
    known: Known, words: list[str], others: list[int], cut: float, steps: list[int]
) -> None:
    size = max(known.tokenizer.get_vocab().values())
    # Tokens of a text, and tokens that no text has one after the other.
    tokens = [*known.encode("".join(words)), *(min(7 * other, size) for other in others)]
    check(known, known.text, tokens, int(cut * len(tokens)), steps)


@given(st.lists(st.sampled_from(WORDS), max_size=12), st.floats(0, 1), Steps)
@settings(max_examples=10, deadline=None)
def test_pieces_of_the_graph(known: Known, words: list[str], cut: float, steps: list[int]) -> None:
    tokens = known.encode("".join(words))
    check(known, known.graph, tokens, int(cut * len(tokens)), steps)


def test_a_space_that_punctuation_takes_takes_nothing_else(of_kind: Open) -> None:
    known = of_kind("byte-level that cleans up")
    tokens = known.encode("I ' m done , isn 't it ?")
    assert streamed(IncrementalDetokenizer(known.text), tokens, [1]) == "I'm done, isn 't it?"


def test_the_first_space_belongs_to_the_text_behind_a_prompt(of_kind: Open) -> None:
    known = of_kind("SentencePiece")
    prompt, answer = known.encode("Once"), known.encode("upon a time")
    assert known.decode(answer) == streamed(IncrementalDetokenizer(known.text), answer, [1]) == "upon a time"
    assert streamed(IncrementalDetokenizer(known.text, prompt=prompt), answer, [1]) == " upon a time"
    stopped = IncrementalDetokenizer(known.text, [" upon"], prompt=prompt)
    assert stopped.update(answer) == "" and stopped.stopped


@pytest.mark.parametrize("kind", ["byte-level", "SentencePiece"])
def test_a_long_answer_is_decoded_in_short_windows(of_kind: Open, kind: str) -> None:
    known = of_kind(kind)
    detokenizer, longest = IncrementalDetokenizer(known.text), 0
    end = max(known.tokenizer.get_vocab().values()) + 1  # no text, as of an end that is ignored
    blank = known.encode("a\n")[-1:] * 500
    for token in [*known.encode("Once upon a time " * 100), *[end] * 500, *blank, *known.encode("She said")]:
        detokenizer.update([token])
        longest = max(longest, len(detokenizer.window))
    assert longest < 40 and detokenizer.text.endswith("She said") and detokenizer.text.count("\n") == 500


@pytest.mark.parametrize("blank", ["\n", "  ", " \n", "<end>"])
def test_text_behind_many_tokens_that_show_nothing(known: Known, blank: str) -> None:
    """They are left out of the window, and the next token's text is what it is behind them."""
    end = max(known.tokenizer.get_vocab().values()) + 1
    many = [end] * 40 if blank == "<end>" else known.encode("a" + blank * 20)[1:]
    for first in ("", "Once", "It isn"):
        tokens = [*(known.encode(first) if first else []), *many, *known.encode(" 't . said")]
        check(known, known.text, tokens, len(tokens) - 3, [1])


def naive(known: Known, tokens: list[int], stops: list[str], min_tokens: int) -> tuple[int, int, int] | None:
    """Begin and end of the stop string that is found first, looking through all of the text; tokens seen."""
    ignored = 0
    for seen in range(1, len(tokens) + 1):
        text = known.text.decode(tokens[:seen])
        if seen <= min_tokens:
            ignored = len(text)
            continue
        found = [
            (at, at + len(stop))
            for stop in stops
            for at in range(len(text))
            if text.startswith(stop, at) and at + len(stop) > ignored
        ]
        if found:
            return (*min(found), seen)
    return None


@given(
    st.text("ab ", max_size=40),
    st.lists(st.text("ab ", min_size=1, max_size=6), min_size=1, max_size=4),
    st.integers(0, 12),
)
@settings(max_examples=400, deadline=None)
def test_stop_strings_are_found_as_by_a_naive_search(
    of_kind: Open, text: str, stops: list[str], min_tokens: int
) -> None:
    known = of_kind("byte-level")
    tokens, found = known.encode(text), None
    for include, to_token_end in ((False, False), (True, False), (True, True)):
        detokenizer = IncrementalDetokenizer(
            known.text, stops, include, to_token_end=to_token_end, min_tokens=min_tokens
        )
        pieces = [detokenizer.update([token]) for token in tokens if not detokenizer.stopped]
        assert "".join([*pieces, detokenizer.finish()]) == detokenizer.text
        found = naive(known, tokens, stops, min_tokens)
        assert detokenizer.stopped == (found is not None)
        if found is None:
            assert detokenizer.text == text
            continue
        begin, end, seen = found
        whole = known.text.decode(tokens[:seen])
        assert detokenizer.text == (whole[:begin] if not include else whole if to_token_end else whole[:end])
        kept = sum(len(known.text.decode(tokens[: count + 1])) <= begin for count in range(seen))
        assert detokenizer.num_tokens == (seen if include else kept)


def test_what_belongs_to_a_stop_string_is_not_kept(of_kind: Open) -> None:
    """The first half of a character has no text yet when it comes."""
    known = of_kind("byte-level")
    tokens = known.encode("a🙂b")
    assert len(tokens) > 3
    detokenizer = IncrementalDetokenizer(known.text, ["🙂"])
    assert detokenizer.update(tokens) == "a" and detokenizer.num_tokens == 1


def test_long_stop_strings_are_searched_once() -> None:
    searched = StopStrings(["a" * 400_000 + str(number) for number in range(16)])
    started = time.process_time()
    for _ in range(2000):
        assert searched.find("aaaa") is None
    assert searched.held_back == 8000
    assert searched.find("b") is None and searched.held_back == 0
    assert time.process_time() - started < 2


def test_a_stop_string_that_the_end_of_an_answer_completes(of_kind: Open) -> None:
    """Until then a later token might have taken its space."""
    known = of_kind("byte-level that cleans up")
    tokens = known.encode("I ' m done '")
    ended = RequestOutput("a", tokens, ["target"] * len(tokens), finish_reason=GenerationFinishReason.LENGTH)
    settings = resolve(GenerationConfig(max_new_tokens=len(tokens), stop_strings={"done '"}), (), False)

    class Handle(list[RequestOutput]):
        def abort(self, *ids: str) -> None:
            """Nothing runs."""

    class Engine:
        def run(self, requests: Sequence[Request]) -> Handle:
            return Handle([ended])

    call = GenerationCall(Engine(), known.tokenizer, 0.0, None)  # type: ignore[arg-type]
    (answer,) = call.run([Request("a", [1], settings)], settings)
    assert call.decoded(settings).texts == ["I'm "] and len(answer.tokens) == 3
    assert answer.finish_reason == GenerationFinishReason.STOP
