"""Prompt lookup, the suffix automaton and the corpus, against searches that are too simple to be wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from openvino_genai import GenerationConfig
from settings import F32

import ovspec
from ovspec.drafters import AutoDrafter, PromptLookupDrafter, Suffix, SuffixDrafter
from ovspec.drafters.corpus import Corpus, suffix_array
from ovspec.drafters.drafter import Drafter, Proposal
from ovspec.drafters.prompt_lookup import as_text, lookup
from ovspec.drafters.suffix_automaton import MAX_DEPTH, SuffixAutomaton
from ovspec.generation.generation_config import resolve, updated
from ovspec.generation.sequence import Sequence
from ovspec.schedule.schedule import ModelAsk


def occurrences(text: list[int], pattern: list[int]) -> list[int]:
    """Ends of a pattern that a token follows."""
    size = len(pattern)
    return [at + size for at in range(len(text) - size) if text[at : at + size] == pattern]


def sequence_of(tokens: list[int], **options: object) -> Sequence:
    config = updated(GenerationConfig(), {"max_new_tokens": 100, **options})
    return Sequence.start(tokens, 100, resolve(config, (), has_draft=True), 0)


@pytest.mark.parametrize("vocab", [1, 2, 3, 20])
@pytest.mark.parametrize("max_ngram_size", [1, 2, 5])
def test_lookup_finds_the_longest_ngram(vocab: int, max_ngram_size: int) -> None:
    rng = np.random.default_rng(vocab)
    for length in (1, 2, 3, 10, 60):
        for k in (1, 4):
            text = rng.integers(0, vocab, length).tolist()
            want, match = list[int](), 0
            for size in range(min(max_ngram_size, length - 1), 0, -1):
                if ends := occurrences(text, text[-size:]):
                    want = text[ends[-1] :]
                    while len(want) < k:
                        want += want
                    match = size
                    break
            assert lookup(as_text(text), max_ngram_size, k) == (want[:k], match)


def test_lookup_does_not_find_tokens_in_the_bytes_of_two() -> None:
    assert lookup(as_text([0x100, 0x200, 5, 1]), 1, 1) == ([], 0)
    assert lookup(as_text([1, 7, 0x100, 0x200, 5, 1]), 2, 2) == ([7, 0x100], 1)


@pytest.mark.parametrize("vocab", [1, 2, 3, 30])
def test_automaton_matches_and_counts(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    text = rng.integers(0, vocab, 200).tolist()
    automaton = SuffixAutomaton()
    automaton.extend(text[:90])
    automaton.extend(text[90:])
    assert automaton.size == len(text)
    for _ in range(60):
        start = int(rng.integers(0, len(text)))
        query = text[start : start + int(rng.integers(1, 100))] + rng.integers(0, vocab, 1).tolist()
        state, length = automaton.match(query)
        sizes = range(1, min(len(query), MAX_DEPTH) + 1)
        assert length == max((size for size in sizes if occurrences(text, query[-size:])), default=0)
        if not length:
            continue
        following = [text[end] for end in occurrences(text, query[-length:])]
        step = automaton.follow(state)
        assert step is not None
        token, _, share = step
        # A substring of more than so many tokens is counted as its end of so many.
        shortened = [text[end] for end in occurrences(text, query[-min(length, MAX_DEPTH - 1) :])]
        counts = following if length < MAX_DEPTH else shortened
        assert share == pytest.approx(counts.count(token) / len(counts))
        assert counts.count(token) == max(counts.count(other) for other in set(counts))


def test_automaton_takes_linear_time_in_repetitive_text() -> None:
    automaton = SuffixAutomaton()
    automaton.extend([1] * 20_000)
    state, length = automaton.match([1] * 30)
    assert length == 30 and automaton.follow(state) is not None


@pytest.mark.parametrize("vocab", [1, 2, 4, 50])
def test_corpus_finds_what_a_search_finds(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    text = rng.integers(0, vocab, 300).tolist()
    corpus = Corpus(np.array(text))
    for _ in range(60):
        start = int(rng.integers(0, len(text)))
        query = rng.integers(0, vocab, 2).tolist() + text[start : start + int(rng.integers(1, 80))]
        positions, length = corpus.match(query)
        sizes = range(1, min(len(query), MAX_DEPTH) + 1)
        assert length == max((size for size in sizes if occurrences(text, query[-size:])), default=0)
        assert sorted(positions) == (occurrences(text, query[-length:]) if length else [])
        if length:
            token, after, share = corpus.follow(positions)
            following = [text[position] for position in positions]
            assert share == following.count(token) / len(following)
            assert sorted(after) == sorted(
                position + 1 for position in positions if text[position] == token and position + 1 < len(text)
            )


def test_suffix_array_is_sorted() -> None:
    tokens = np.random.default_rng(0).integers(0, 2, 500)
    order = suffix_array(tokens, 64)
    suffixes = [tokens[start : start + 64].tolist() for start in order]
    assert suffixes == sorted(suffixes) and sorted(order) == list(range(500))
    assert suffix_array(np.array([7]), 64).tolist() == [0]


def test_suffix_follows_the_more_frequent_continuation() -> None:
    text = [1, 2, 3, 9, 1, 2, 4, 9, 1, 2, 4, 8, 1, 2]
    assert SuffixDrafter().propose([sequence_of(text)], [1])[0].tokens == [4]
    # The last time goes before: prompt lookup does not count.
    assert PromptLookupDrafter().propose([sequence_of([*text[:-2], 1, 2, 3, 1, 2])], [1])[0].tokens == [3]


def test_a_longer_match_drafts_more() -> None:
    drafter = SuffixDrafter()
    text = [*range(50), 100, 101]
    lengths = [
        len(drafter.propose([sequence_of(text + text[20 : 20 + n])], [16])[0].tokens) for n in (1, 2, 3, 9)
    ]
    assert lengths == [2, 4, 6, 16]


def test_the_corpus_is_used_where_it_knows_more() -> None:
    corpus = Corpus(np.array([5, 6, 7, 8, 9, 10, 11]))
    sequence = sequence_of([6, 7, 1, 2, 5, 6, 7])
    assert SuffixDrafter().propose([sequence], [3])[0].tokens == [1, 2, 5]
    assert SuffixDrafter(corpus).propose([sequence], [3])[0].tokens == [8, 9, 10]


def test_nothing_is_proposed_where_nothing_matches() -> None:
    sequence = sequence_of([1, 2, 3, 4])
    for drafter in (SuffixDrafter(), PromptLookupDrafter()):
        assert drafter.propose([sequence], [5]) == [Proposal()]
        assert drafter.propose([sequence_of([1])], [5]) == [Proposal()]
        assert drafter.propose([sequence_of([1, 1, 1])], [0]) == [Proposal()]


@pytest.mark.parametrize(
    "drafter", [SuffixDrafter(), PromptLookupDrafter()], ids=lambda drafter: drafter.name
)
def test_provisional_tokens_can_be_replaced(drafter: Drafter) -> None:
    sequence = sequence_of([1, 2, 3, 4, 5, 6, 1, 2])
    drafter.propose([sequence], [3])
    sequence.add_provisional([3, 4, 9, 9, 7, 8])
    drafter.propose([sequence], [3])
    sequence.take_back()
    sequence.append([3])
    again = sequence_of([1, 2, 3, 4, 5, 6, 1, 2, 3])
    assert drafter.propose([sequence], [3]) == drafter.propose([again], [3])
    assert drafter.propose([sequence], [3])[0].tokens == [4, 5, 6]


def test_max_ngram_size_of_the_call_goes_before_the_drafters() -> None:
    text = [1, 2, 3, 9, 2, 3, 8, 1, 2, 3]
    assert PromptLookupDrafter(3).propose([sequence_of(text)], [1])[0].tokens == [9]
    options = {"max_ngram_size": 1, "num_assistant_tokens": 1}
    assert PromptLookupDrafter(3).propose([sequence_of(text, **options)], [1])[0].tokens == [8]


class Scripted(Drafter):
    """Always proposes the same."""

    def __init__(self, name: str, tokens: list[int]) -> None:
        self.name, self._tokens, self.asked = name, tokens, 0

    def _draft(self, sequences: list[Sequence], counts: list[int]) -> dict[int, Proposal]:
        self.asked += len(sequences)
        return {index: Proposal(self._tokens[:count]) for index, count in enumerate(counts)}


def test_auto_takes_the_lookup_behind_a_long_match_and_the_model_elsewhere() -> None:
    model, loop = Scripted("model", [4, 4]), [1, 2, 3, 1, 2, 3]
    auto = AutoDrafter(SuffixDrafter(), model)
    asks = [ModelAsk(2, least_match) for least_match in (3, 4)]
    (found,), (other,) = (auto.propose([sequence_of(loop)], [2], [ask]) for ask in asks)
    assert (found.tokens, found.match) == ([1, 2], 3) and (other.tokens, other.match) == ([4, 4], 0)
    # Without a word on the model, it is asked where nothing matches; with 0 tokens it is not.
    assert auto.propose([sequence_of([1, 2])], [1])[0].tokens == [4]
    assert auto.propose([sequence_of([1, 2])], [1], [ModelAsk(0)])[0].tokens == []
    assert model.asked == 2


def test_suffix_follows_a_loop_beyond_the_end_of_the_text() -> None:
    loop = 12 * [1, 2, 3]
    assert SuffixDrafter().propose([sequence_of(loop)], [9])[0].tokens == 3 * [1, 2, 3]


def test_a_long_text_is_read_in_steps() -> None:
    """Others wait for what a step reads."""
    drafter, sequence = SuffixDrafter(), sequence_of(2000 * [1, 2, 3])
    drafts = [drafter.propose([sequence], [3])[0].tokens for _ in range(3)]
    assert drafts == [[], [], [1, 2, 3]]


def test_corpus_files(tmp_path: Path, demo_ir: Path) -> None:
    for name, content, message in (
        ("empty", b"", "is empty"),
        ("binary", b"\xff\xfe\x00", "is not UTF-8"),
        ("missing", None, "No such file"),
    ):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"corpus .*{name}.*{message}"):
            ovspec.LLMPipeline(demo_ir, "CPU", drafter=Suffix(path), **F32)
