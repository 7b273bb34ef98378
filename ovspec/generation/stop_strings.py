"""Where the first stop string of a growing text stands."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy


class StopStrings:
    """Searches a text that comes in pieces; a character is looked at once for each stop string."""

    def __init__(self, stop_strings: Sequence[str]) -> None:
        self._searches = [_Search(text) for text in stop_strings]
        self._length = 0

    def fork(self) -> StopStrings:
        """The same text, which grows apart."""
        other = copy(self)
        other._searches = [copy(search) for search in self._searches]
        return other

    @property
    def held_back(self) -> int:
        """Characters at the end of the text that may be the beginning of a stop string."""
        return max((search.matched for search in self._searches), default=0)

    def find(self, piece: str) -> tuple[int, int] | None:
        """Read on; return begin and end in the text of the stop string that `piece` completes.

        Of several, the one that begins first, and of these the shortest.
        """
        before, self._length = self._length, self._length + len(piece)
        ends = [(search, search.read(piece)) for search in self._searches]
        return min(
            ((before + end - len(search.text), before + end) for search, end in ends if end), default=None
        )


class _Search:
    """One stop string, found as Knuth, Morris and Pratt do.

    Attributes:
        matched: characters of the stop string that the text ends with, fewer than all.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        # Of each beginning, the length of the longest shorter beginning that it ends with. Only as long as
        # was needed: a stop string may be far longer than the text.
        self._shorter = [0]

    def read(self, piece: str) -> int:
        """Characters of `piece` up to the first end of the stop string; 0 if it does not end there."""
        text, matched, first, at = self.text, self.matched, 0, 0
        while at < len(piece):
            if not matched:
                at = piece.find(text[0], at)
                if at < 0:
                    break
            while matched and text[matched] != piece[at]:
                matched = self._fallback(matched)
            matched += text[matched] == piece[at]
            at += 1
            if matched == len(text):
                first = first or at
                matched = self._fallback(matched)
        self.matched = matched
        return first

    def _fallback(self, matched: int) -> int:
        shorter, text = self._shorter, self.text
        while len(shorter) < matched:
            length = shorter[-1]
            while length and text[length] != text[len(shorter)]:
                length = shorter[length - 1]
            shorter.append(length + (text[length] == text[len(shorter)]))
        return shorter[matched - 1]
