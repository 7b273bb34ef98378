"""Tokens that a grammar lets follow a sequence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ovspec.errors import InvalidValueError

if TYPE_CHECKING:
    from llguidance import LLMatcher

# Where a fault stands in llguidance's form of a grammar, which no user has seen.
_PLACE = re.compile(r"^at \d+\(\d+\): (?:failed to compile JSON schema: )?")
# Reasons of llguidance's, as they begin, in plain words.
_PLAIN = {
    "NoExtensionBias": "nothing satisfies it",
    "lexer error: too many expressions constructed": "it repeats too much, or has too long a text; make it "
    "smaller",
    "oneOf constraints are not supported": "the schemas of a oneOf overlap, so that the answer "
    "could be of several; use anyOf",
}


class GrammarError(InvalidValueError):
    """A grammar that can't be followed any further: it takes too long, or does not allow what is there."""


class Constraint:
    """A grammar, and how far a sequence has come in it.

    Rows of a verification pass stand behind different draft tokens. The matcher walks from the path of one
    to that of the next, forwards and back, and a path's mask is kept: the drafter that draws a token, and the
    target that judges it, ask for the same one.

    Args:
        matcher: of the grammar, at its beginning; it belongs to this object.
        vocab_size: tokens of the model.
        stop_token_ids: end-of-sequence tokens, which the grammar allows where it may end.
    """

    def __init__(self, matcher: LLMatcher, vocab_size: int, stop_token_ids: Sequence[int]) -> None:
        self._matcher, self._vocab_size = matcher, vocab_size
        self._stops = np.zeros(vocab_size, np.bool_)
        self._stops[[token for token in stop_token_ids if token < vocab_size]] = True
        self._path: list[int] = []  # what the matcher has read beyond the sequence's own tokens
        self._unread = 0  # last tokens of the sequence that it has not
        self._masks: dict[tuple[int, ...], NDArray[np.bool_]] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """The sequence has these tokens too.

        Raises:
            GrammarError: the grammar does not allow them.
        """
        self._walk(tokens)
        self.settle(len(tokens))

    def takes(self, tokens: Sequence[int]) -> bool:
        """Whether the sequence may go on with these tokens, however the text is spelled.

        Raises:
            GrammarError: the grammar takes too long.
        """
        if self._unread:
            return False
        self._follow(tokens)
        rest = tokens[len(self._path) :]
        return not rest or (self._matcher.is_stopped() and all(self._stops[token] for token in rest))

    def settle(self, count: int) -> None:
        """The sequence has the `count` tokens too that `takes` was asked for, allowed or not."""
        self._unread += count - len(self._path)
        self._path.clear()
        self._masks.clear()

    def rollback(self, count: int) -> None:
        """The sequence has lost its last `count` tokens."""
        unread = min(count, self._unread)
        self._unread -= unread
        self._back(len(self._path) + count - unread)
        self._path.clear()
        self._masks.clear()

    def ends(self, tokens: Sequence[int] = ()) -> bool:
        """Whether nothing but an end-of-sequence token may follow the sequence and `tokens`."""
        self._walk(tokens)
        return bool(self._matcher.is_stopped())

    def mask(self, drafted: Sequence[int] = ()) -> NDArray[np.bool_]:
        """Which tokens may follow the sequence and `drafted`, bool `[vocab]`.

        Raises:
            GrammarError: none may, the draft is not allowed itself, or the grammar takes too long.
        """
        key = tuple(drafted)
        if (mask := self._masks.get(key)) is None:
            self._masks[key] = mask = self._stops if self.ends(drafted) else self._mask()
        return mask

    def allows(self, drafted: Sequence[int], token: int) -> bool:
        """Whether `mask` has a token; much quicker than the mask.

        Raises:
            GrammarError: as `mask`.
        """
        if self.ends(drafted):
            return bool(self._stops[token])
        if self._matcher.compute_ff_bytes():  # masks have the tokenizer's own spelling of such text alone
            return bool(self.mask(drafted)[token])
        return bool(self._matcher.validate_tokens([token]))

    def valid(self, drafted: Sequence[int]) -> int:
        """How many of these tokens may follow the sequence, one after the other."""
        for count, token in enumerate(drafted):
            if self.ends(drafted[:count]) or not self.allows(drafted[:count], token):
                return count
        return len(drafted)

    def forced(self) -> list[int]:
        """Tokens of the text that must follow the sequence, whatever a model says; often none."""
        if self.ends():
            return []
        return list(self._matcher.compute_ff_tokens())

    def _mask(self) -> NDArray[np.bool_]:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        return np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)

    def _walk(self, tokens: Sequence[int]) -> None:
        """Go to where the matcher has read `tokens`, or as many as there are up to the end of the grammar."""
        if not self._follow(tokens):
            raise GrammarError(f"the grammar does not allow token {tokens[len(self._path)]} there")

    def _follow(self, tokens: Sequence[int]) -> bool:
        """The same as far as the grammar allows; whether it does all the way."""
        same = 0
        for ours, theirs in zip(self._path, tokens, strict=False):
            if ours != theirs:
                break
            same += 1
        if same < len(self._path):
            self._back(len(self._path) - same)
            del self._path[same:]
        for token in tokens[same:]:
            if self._matcher.is_stopped():
                break  # an end-of-sequence token, which nothing follows
            if not self._matcher.try_consume_tokens([token]):
                self._check()
                return False
            self._path.append(token)
        self._check()
        return True

    def _back(self, count: int) -> None:
        if count and not self._matcher.rollback(count):
            self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(f"the grammar can't be followed: {first_line(self._matcher.get_error())}")


def first_line(text: str) -> str:
    """What is wrong, without the state that follows it; of a pattern's error, its last line."""
    lines = [line.strip() for line in text.partition("<state>")[0].splitlines() if line.strip()]
    reasons = [line for line in lines if line.startswith("error:")]
    reason = _PLACE.sub("", (reasons or lines or ["no reason given"])[0]).removeprefix("error: ")
    return next((plain for begin, plain in _PLAIN.items() if reason.startswith(begin)), reason)
