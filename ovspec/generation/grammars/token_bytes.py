"""The bytes of every token, where text is these bytes one after the other."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from weakref import WeakKeyDictionary

import numpy as np
import openvino_genai

# So many rows are decoded at once; larger vocabularies in several.
_CHECKED_ROWS = 8192
_SPACE = "▁".encode()
_BYTE = re.compile(rb"<0x([0-9A-F]{2})>")
# Bytes that no character has, in the form of one that is cut short: Python shows each of them as unknown,
# detokenizers of OpenVINO all of them as one.
_CUT_SHORT = re.compile(
    rb"(?:\xe0[\x80-\x9f]|\xed[\xa0-\xbf]|(?:\xf0[\x80-\x8f]|\xf4[\x90-\xbf]|[\xf5-\xf7][\x80-\xbf])"
    rb"[\x80-\xbf]?)(?![\x80-\xbf])"
)
# As detokenizers of OpenVINO clean spaces up.
_MARKS = frozenset((b".", b"?", b"!", b",", b"'", b"'m", b"'s", b"'re", b"'ve", b"n't"))
_CLEANED = re.compile(r" (?:([\\.?!,])|('[ms])|(') |('[rv]e)|(n't))")


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """A vocabulary as bytes.

    Attributes:
        table: the bytes of each token; none for a special one.
        strips: whether text loses a space that it begins with, as with SentencePiece.
        cleans: whether spaces before punctuation are dropped, `clean_up_tokenization_spaces`.
    """

    table: list[bytes]
    strips: bool = False
    cleans: bool = False

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of several tokens, without the special ones."""
        return self.text(b"".join([self.of_token(token) for token in tokens]))

    def of_token(self, token: int) -> bytes:
        """The bytes of a token; none for a special one, and one that only the model has."""
        # A model may have more tokens than its tokenizer, to fill a multiple of some number.
        return self.table[token] if token < len(self.table) else b""

    def text(self, data: bytes) -> str:
        """Bytes as the tokenizer shows them."""
        if self.strips and data.startswith(b" "):
            data = data[1:]
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = _CUT_SHORT.sub(b"\xff", data).decode("utf-8", "replace")
        return _CLEANED.sub(lambda found: found[found.lastindex or 0], text) if self.cleans else text

    @classmethod
    def of(cls, tokenizer: openvino_genai.Tokenizer) -> TokenBytes | None:
        """Tried on the whole vocabulary, once; `None` if text is not simply the tokens' bytes."""
        if tokenizer not in _FOUND:
            _FOUND[tokenizer] = cls._tried(tokenizer)
        return _FOUND[tokenizer]

    @classmethod
    def _tried(cls, tokenizer: openvino_genai.Tokenizer) -> TokenBytes | None:
        names = names_of(tokenizer)
        # Behind a letter no space is the first of the text.
        letter = next((token for token, name in enumerate(names) if name.isalpha() and name.isascii()), None)
        if letter is None:
            return None
        shown: list[str] = []
        for start in range(0, len(names), _CHECKED_ROWS):
            rows = range(start, min(start + _CHECKED_ROWS, len(names)))
            shown += tokenizer.decode([[letter, token] for token in rows])
        nothing = names[letter].decode()
        shuffled = np.random.default_rng(0).permutation(len(names)).tolist()
        spaced = [
            token
            for token, name in enumerate(names)
            if name.startswith((b" ", _SPACE)) and shown[token] != nothing
        ]
        stop = [token for token, name in enumerate(names) if name == b"."]
        shortest = sorted(spaced, key=lambda token: len(names[token]))[:1]
        marks = [token for token, name in enumerate(names) if bytes_of_name(name).strip() in _MARKS]
        # Before a mark a space may be gone because it is cleaned up, not because the text begins with it.
        words = [token for token in spaced if token not in marks][:1]
        tried = [
            [*words, letter],
            [letter, *shortest, *stop],
            *([letter, mark, *words] for mark in marks),
            shuffled,
        ]
        trials = [(tokens, tokenizer.decode(tokens)) for tokens in tried]
        spellings: tuple[Callable[[bytes], bytes], ...] = (bytes, bytes_of_name)
        for spelled, cleans, strips in product(spellings, (False, True), (False, True)):
            table = [
                b"" if text == nothing else spelled(name) for name, text in zip(names, shown, strict=True)
            ]
            found = cls(table, strips, cleans)
            behind = (found.text(names[letter] + data) for data in table)
            if all(want == text for want, text in zip(shown, behind, strict=True)) and all(
                found.decode(tokens) == text for tokens, text in trials
            ):
                return found
        return None


# Of tokenizers that are in use: to try one takes seconds.
_FOUND: WeakKeyDictionary[openvino_genai.Tokenizer, TokenBytes | None] = WeakKeyDictionary()


def names_of(tokenizer: openvino_genai.Tokenizer) -> list[bytes]:
    """The vocabulary in the order of its ids."""
    vocabulary: dict[bytes, int] = tokenizer.get_vocab()
    names = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for name, token in vocabulary.items():
        names[token] = name
    return names


def bytes_of_name(name: bytes) -> bytes:
    """The bytes that SentencePiece means by a name."""
    byte = _BYTE.fullmatch(name)
    return bytes([int(byte[1], 16)]) if byte else name.replace(_SPACE, b" ")
