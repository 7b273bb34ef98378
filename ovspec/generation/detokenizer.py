"""Incremental detokenizer: gives text that no later token changes, and ends it at a stop string."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy

from ovspec.generation.stop_strings import StopStrings
from ovspec.generation.token_text import DecodesTokens, added

# A window of more tokens begins anew.
_WINDOW = 8
# An unfinished character is shown as up to three of these, one for each of its bytes.
_UNFINISHED = re.compile(r"�{1,3}\Z")
# The space before these vanishes when the next character comes, see `clean_up_tokenization_spaces`.
_MAY_BE_CLEANED = re.compile(r" (?:'[rv]?|n'?)?\Z")


class IncrementalDetokenizer:
    """Decodes a growing list of tokens in short windows.

    The text of a token depends on what stands before it, and what comes behind may change it: bytes of a
    character, spaces that punctuation takes. A new piece is therefore what a window's text adds to what it
    had, without the end that may still change. The pieces are together the text of all tokens.

    Args:
        prompt: tokens that the text continues; none: it is the text of the new tokens alone.
        include_stop_str: whether the text keeps the stop string that ends it.
        to_token_end: with it also what the token that completes the stop string has behind it, as in
            openvino_genai; else the text ends with the stop string, as in vLLM.
        min_tokens: stop strings that so many tokens have completed do not end the text, as in vLLM.
    """

    def __init__(
        self,
        decoder: DecodesTokens,
        stop_strings: Sequence[str] = (),
        include_stop_str: bool = False,
        *,
        prompt: Sequence[int] = (),
        to_token_end: bool = False,
        min_tokens: int = 0,
    ) -> None:
        self._decoder = decoder
        self._stops = StopStrings(stop_strings) if stop_strings else None
        self._include_stop_str, self._to_token_end = include_stop_str, to_token_end
        self._min_tokens = min_tokens
        self._window = self._behind(prompt)
        self._known = decoder.decode(self._window)
        # The window may begin anew here, where the text before is settled.
        self._mark = len(self._window)
        self._marked_text = 0
        self._sent = 0
        self.text = ""
        #: Where in the text each token ends, as far as that is settled.
        self.ends: list[int] = []
        # Tokens that hold the beginning of a character: they end before it, and yet belong to it.
        self._parts: set[int] = set()
        self._open: list[str] = []
        self.num_seen = 0
        self.num_tokens = 0
        self.stopped = False

    def fork(self) -> IncrementalDetokenizer:
        """The same text, which grows apart."""
        other = copy(self)
        other._window, other._open = list(self._window), list(self._open)
        other.ends, other._parts = list(self.ends), set(self._parts)
        other._stops = None if self._stops is None else self._stops.fork()
        return other

    @property
    def window(self) -> list[int]:
        """The last tokens, enough to know what the next one adds."""
        return list(self._window)

    def update(self, tokens: Sequence[int]) -> str:
        """Add new tokens; return the text that can be shown now.

        Text that may be the beginning of a stop string is held back. When a stop string is found, `stopped`
        is set, `text` ends there, and `num_tokens` is the number of tokens kept: up to and with the stop
        string if it stays in the text, else those that end before it. `num_seen` counts up to the token
        that completed it, with that one.
        """
        if self._stops is None:
            self._decode(tokens)
            return self._take(len(self.text))
        for token in tokens:
            self._decode([token])
            if self.stopped:
                return self._take(len(self.text))
        return self._take(len(self.text) - self._stops.held_back)

    def finish(self) -> str:
        """Return the text that was held back; call this after the last token."""
        if not self.stopped:
            self._settle(self._decoder.decode(self._window), 0)
        return self._take(len(self.text))

    def _take(self, end: int) -> str:
        piece = self.text[self._sent : end]
        self._sent += len(piece)
        return piece

    def _decode(self, tokens: Sequence[int]) -> None:
        self._window += [token for token in tokens if self._decoder.shows(token)]
        self.num_seen += len(tokens)
        self.num_tokens += len(tokens)
        whole = self._decoder.decode(self._window)
        self._open += [whole] * len(tokens)
        unsettled = self._unsettled(whole)
        self._settle(whole, unsettled)
        if len(self._window) - self._mark >= _WINDOW and not unsettled:
            self._move_window()

    def _unsettled(self, whole: str) -> int:
        """Characters at the end of a text that a later token may change."""
        found = _UNFINISHED.search(whole, max(0, len(whole) - 3))
        if found is None and self._decoder.cleans_up:
            found = _MAY_BE_CLEANED.search(whole, max(0, len(whole) - 3))
        return len(found[0]) if found else 0

    def _settle(self, whole: str, unsettled: int) -> None:
        """Take over what the window's text has new."""
        settled = whole[: len(whole) - unsettled]
        piece = added(self._known, settled)
        if piece:
            self.text += piece
            self._known = settled
        closed = 0
        for before in self._open:
            rest = added(before, settled)
            if unsettled and not rest and before != settled:
                break
            if rest and before.endswith("�") and not settled.startswith(before):
                self._parts.add(len(self.ends))
            self.ends.append(max(0, len(self.text) - len(rest)))
            closed += 1
        del self._open[:closed]
        found = self._stops.find(piece) if self._stops is not None and piece else None
        if found is not None and self.num_seen > self._min_tokens:
            self._stop(*found)

    def _move_window(self) -> None:
        """Begin the window where the last one had its middle; a second half that shows nothing is left out.

        Text must stand before the next token's, or that might lose its first space.
        """
        if self.text[self._marked_text :].strip():
            del self._window[: self._mark]
            self._mark = len(self._window)
        else:
            del self._window[self._mark : -1]
        self._known = self._decoder.decode(self._window)
        self._marked_text = len(self.text)

    def _stop(self, begin: int, end: int) -> None:
        self.ends += [len(self.text)] * len(self._open)
        self.stopped = True
        if not self._include_stop_str:
            self.text = self.text[:begin]
            places = enumerate(self.ends)
            self.num_tokens = next(
                (at for at, end in places if end > begin or (end == begin and at in self._parts)),
                self.num_seen,
            )
        elif not self._to_token_end:
            self.text = self.text[:end]

    def _behind(self, prompt: Sequence[int]) -> list[int]:
        """The last tokens of a prompt, enough to know what the next one adds."""
        count = _WINDOW
        while count < len(prompt) and not self._decoder.decode(prompt[-count:]).strip(" �")[_WINDOW // 2 :]:
            count *= 2
        return [token for token in prompt[-count:] if self._decoder.shows(token)]
