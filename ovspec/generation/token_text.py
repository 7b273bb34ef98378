"""Text of tokens without a call of the tokenizer's graph, where the tokens are bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import openvino_genai

# A row of every token is decoded at once; larger vocabularies in several.
_CHECKED_ROWS = 8192


class DecodesTokens(Protocol):
    """What turns tokens into text."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`."""


class TokenText:
    """Turns tokens into text, and knows the bytes of each.

    A detokenizer of OpenVINO is a graph, and a call takes longer than a server has for a token. In the
    vocabularies of byte-level BPE a token is a fixed sequence of bytes, and text is the bytes of the tokens
    one after the other. Whether that holds is tried on the whole vocabulary; where it does not, the graph
    is called.
    """

    def __init__(self, tokenizer: openvino_genai.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._bytes = _byte_tokens(tokenizer)
        self._texts: dict[int, str] = {}

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of several tokens, without the special ones."""
        if self._bytes is None:
            return str(self._tokenizer.decode(list(tokens)))
        # A model may have more tokens than its tokenizer, to fill a multiple of some number.
        known = [token for token in tokens if token < len(self._bytes)]
        return b"".join([self._bytes[token] for token in known]).decode("utf-8", "replace")

    def text(self, token: int) -> str:
        """One token as text; a special one by its name."""
        if token not in self._texts:
            self._texts[token] = str(self._tokenizer.decode([token], skip_special_tokens=False))
        return self._texts[token]

    def bytes(self, token: int) -> bytes:
        """One token as bytes; a special one by its name."""
        known = b"" if self._bytes is None or token >= len(self._bytes) else self._bytes[token]
        return known or self.text(token).encode()


def _byte_tokens(tokenizer: openvino_genai.Tokenizer) -> list[bytes] | None:
    """The bytes of every token that is shown; `None` if text is not simply these."""
    vocabulary: dict[bytes, int] = tokenizer.get_vocab()
    if not vocabulary:
        return None
    table = [b""] * (max(vocabulary.values()) + 1)
    for name, token in vocabulary.items():
        table[token] = name
    for start in range(0, len(table), _CHECKED_ROWS):
        rows = range(start, min(start + _CHECKED_ROWS, len(table)))
        for token, text in zip(rows, tokenizer.decode([[token] for token in rows]), strict=True):
            if text == "":
                table[token] = b""  # a special token
            elif text != table[token].decode("utf-8", "replace"):
                return None
    shuffled = np.random.default_rng(0).permutation(len(table)).tolist()
    joined = b"".join([table[token] for token in shuffled]).decode("utf-8", "replace")
    return table if tokenizer.decode(shuffled) == joined else None
