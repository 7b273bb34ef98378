"""Incremental detokenizer: gives whole characters only, and ends the text at a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from ovspec.generation.token_text import DecodesTokens

_INCOMPLETE = "�"


class IncrementalDetokenizer:
    """Decodes a growing list of tokens in short windows.

    The text of a token depends on its neighbours (spaces, bytes of one character). Each new piece is
    therefore the difference between two decodings of a short window.
    """

    def __init__(
        self, tokenizer: DecodesTokens, stop_strings: Sequence[str] = (), include_stop_str: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._stop_strings = stop_strings
        self._include_stop_str = include_stop_str
        self._tokens: list[int] = []
        self._window = 0
        self._read = 0
        self._sent = 0
        self.text = ""
        self._ends: list[int] = []
        self.num_tokens = 0
        self.stopped = False

    def update(self, tokens: Sequence[int]) -> str:
        """Add new tokens; return the text that can be shown now.

        Text that may be the beginning of a stop string is held back. When a stop string is found, `stopped`
        is set, `text` ends there, and `num_tokens` is the number of tokens kept: up to and with the stop
        string if it stays in the text, else those that end before it.
        """
        if self._stop_strings:
            for token in tokens:
                self._decode([token])
                self._ends.append(len(self.text))
                if self._cut_at_stop_string():
                    break
        else:
            self._decode(tokens)
        end = len(self.text) - (0 if self.stopped else self._held_back())
        return self._take(end)

    @property
    def num_seen(self) -> int:
        """Tokens up to the one that completed a stop string, that one included."""
        return len(self._tokens)

    def finish(self) -> str:
        """Return the text that was held back; call this after the last token."""
        if not self.stopped:
            self.text += self._pending()
            self._window, self._read = self._read, len(self._tokens)
            self._cut_at_stop_string()
        return self._take(len(self.text))

    def _take(self, end: int) -> str:
        piece = self.text[self._sent : max(end, self._sent)]
        self._sent += len(piece)
        return piece

    def _decode(self, tokens: Sequence[int]) -> None:
        self._tokens.extend(tokens)
        self.num_tokens += len(tokens)
        piece = self._pending()
        if piece and not piece.endswith(_INCOMPLETE):
            self.text += piece
            self._window, self._read = self._read, len(self._tokens)

    def _pending(self) -> str:
        known: str = self._tokenizer.decode(self._tokens[self._window : self._read]) if self._read else ""
        text: str = self._tokenizer.decode(self._tokens[self._window :])
        return text[len(known) :]

    def _cut_at_stop_string(self) -> bool:
        found = [at for stop in self._stop_strings if (at := self.text.find(stop)) >= 0]
        if found:
            at = min(found)
            # A stop string that is kept ends with the token that completes it, as in openvino_genai.
            if not self._include_stop_str:
                self.text = self.text[:at]
                self.num_tokens = sum(end <= at for end in self._ends)
            self.stopped = True
        return self.stopped

    def _held_back(self) -> int:
        longest = 0
        for stop in self._stop_strings:
            for length in range(min(len(stop) - 1, len(self.text)), longest, -1):
                if self.text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
