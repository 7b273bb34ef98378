"""`suffix`: the most frequent continuation of the longest suffix seen before.

After LLMA (arXiv 2304.04487) and SuffixDecoding (arXiv 2411.04975): search prompt, output and, if given, a
reference corpus. Draft more tokens after a longer match, and stop where continuations differ.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import TypeVar

from ovspec.drafters.corpus import Corpus
from ovspec.drafters.drafter import Drafter, Proposal
from ovspec.drafters.suffix_automaton import MAX_DEPTH, SuffixAutomaton
from ovspec.generation.sequence import Sequence

_Place = TypeVar("_Place")  # in the text that a draft follows

# Most tokens to draft per matched token (alpha of SuffixDecoding).
TOKENS_PER_MATCH = 2
# Most tokens of a text that one step reads: other requests wait meanwhile.
_MOST_READ = 2048
# A draft ends when the product of the shares of its continuations falls below this.
_MIN_SHARE = 0.2


class SuffixDrafter(Drafter):
    """Continues the longest suffix that occurred before with its most frequent continuation.

    Args:
        corpus: a reference text that is searched beside prompt and output.
    """

    name = "suffix"
    looks_up, has_model = True, False
    why_no_trees = "it gives no probabilities"

    def __init__(self, corpus: Corpus | None = None) -> None:
        self._corpus = corpus

    def _draft(self, sequences: SequenceOf[Sequence], counts: SequenceOf[int]) -> dict[int, Proposal]:
        return {i: self._continue(sequences[i], k) for i, k in enumerate(counts) if k > 0}

    def _continue(self, sequence: Sequence, k: int) -> Proposal:
        automaton: SuffixAutomaton = sequence.draft_states.setdefault(self.name, SuffixAutomaton())
        # Provisional tokens may still be replaced, and the automaton cannot remove tokens.
        begin = automaton.size
        automaton.extend(sequence.tokens[begin : min(sequence.confirmed, begin + _MOST_READ)])
        if automaton.size < sequence.confirmed:
            return Proposal()
        tail = sequence.tokens[-MAX_DEPTH:]
        state, length = automaton.match(tail)
        if self._corpus is not None:
            positions, corpus_length = self._corpus.match(tail)
            if corpus_length > length:
                draft = _drafted(self._corpus.follow, positions, _limit(k, corpus_length))
                return Proposal(draft, match=corpus_length)
        return Proposal(_drafted(automaton.follow, state, _limit(k, length)), match=length)


def _limit(k: int, length: int) -> int:
    return min(k, TOKENS_PER_MATCH * length)


def _drafted(
    follow: Callable[[_Place], tuple[int, _Place, float] | None], place: _Place, limit: int
) -> list[int]:
    draft: list[int] = []
    share = 1.0
    while len(draft) < limit and (following := follow(place)) is not None:
        token, place, part = following
        share *= part
        if share < _MIN_SHARE:
            break
        draft.append(token)
    return draft
