"""A suffix automaton over tokens, extended online, which counts occurrences of substrings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MAX_DEPTH = 64
_ROOT = 0


class SuffixAutomaton:
    """The smallest automaton that accepts every substring of a text, built online (Blumer et al. 1985).

    A state represents the substrings that end at the same positions. `_length` is the length of the longest
    one, and the suffix link is the state of the longest suffix that ends at more positions. Occurrences are
    counted for substrings of up to `MAX_DEPTH` tokens only: counting all would take quadratic time in a
    repetitive text.
    """

    __slots__ = ("_count", "_last", "_length", "_link", "_next", "_recent", "size")

    def __init__(self) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._count = [0]
        self._last = self._recent = _ROOT
        self.size = 0

    def extend(self, tokens: Iterable[int]) -> None:
        """Add tokens at the end."""
        for token in tokens:
            self._append(token)

    def match(self, tokens: Sequence[int]) -> tuple[int, int]:
        """State and length of the longest suffix of `tokens` that occurs with a token after it.

        Only the last `MAX_DEPTH` tokens are used; length 0 is the empty suffix.
        """
        state, length = _ROOT, 0
        for token in tokens[-MAX_DEPTH:]:
            while state != _ROOT and token not in self._next[state]:
                state = self._link[state]
                length = self._length[state]
            if token in self._next[state]:
                state, length = self._next[state][token], length + 1
        # No token follows the end of the text yet.
        while state != _ROOT and not self._next[state]:
            state = self._link[state]
            length = self._length[state]
        return state, length

    def follow(self, state: int) -> tuple[int, int, float] | None:
        """The most frequent token after a state, the next state, and its share; `None` where there is none.

        At the text's end it goes on behind a shorter suffix, so that a loop is followed to any length.
        """
        while state != _ROOT and not self._next[state]:
            state = self._link[state]
        following = self._next[state]
        if state == _ROOT:
            return None
        counts = {token: self._count[self._shortened(after)] for token, after in following.items()}
        token = max(counts, key=counts.__getitem__)
        return token, self._shortened(following[token]), counts[token] / sum(counts.values())

    def _append(self, token: int) -> None:
        state = self._new(self._length[self._last] + 1, {}, _ROOT, 0)
        at = self._last
        while at != -1 and token not in self._next[at]:
            self._next[at][token] = state
            at = self._link[at]
        if at != -1:
            after = self._next[at][token]
            if self._length[at] + 1 != self._length[after]:
                after = self._split(at, token, after)
            self._link[state] = after
        self._last = state
        self.size += 1
        self._recent = self._shortened(self._next[self._recent][token])
        at = self._recent
        while at != _ROOT:
            self._count[at] += 1
            at = self._link[at]

    def _split(self, at: int, token: int, after: int) -> int:
        """Split off a state for the shorter substrings, which now end at one more position."""
        clone = self._new(
            self._length[at] + 1, dict(self._next[after]), self._link[after], self._count[after]
        )
        while at != -1 and self._next[at].get(token) == after:
            self._next[at][token] = clone
            at = self._link[at]
        self._link[after] = clone
        return clone

    def _new(self, length: int, following: dict[int, int], link: int, count: int) -> int:
        self._next.append(following)
        self._link.append(link)
        self._length.append(length)
        self._count.append(count)
        return len(self._length) - 1

    def _shortened(self, state: int) -> int:
        """The state of its suffix of at most `MAX_DEPTH` tokens."""
        while self._length[self._link[state]] >= MAX_DEPTH:
            state = self._link[state]
        return state
