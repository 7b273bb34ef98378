"""Text of tokens: of several, and of one behind others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

import openvino_genai

from ovspec.generation.grammars.token_bytes import TokenBytes, bytes_of_name, names_of


class DecodesTokens(Protocol):
    """What turns tokens into text."""

    @property
    def cleans_up(self) -> bool:
        """Whether a space may vanish when punctuation comes behind it."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`, without the special ones."""

    def shows(self, token: int) -> bool:
        """Whether a token may be seen in a text; a special one is not."""


class GraphText:
    """Text by calls of the tokenizer's graph."""

    def __init__(self, tokenizer: openvino_genai.Tokenizer) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def cleans_up(self) -> bool:
        """As of `DecodesTokens`, tried on a text."""
        tokens = self._tokenizer.encode("a .", add_special_tokens=False).input_ids.data
        return not str(self.decode(tokens.reshape(-1).tolist())).endswith("a .")

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of several tokens, without the special ones."""
        return str(self._tokenizer.decode(list(tokens))) if tokens else ""

    def shows(self, token: int) -> bool:
        """Only the graph knows."""
        return True


class Piece(NamedTuple):
    """What a token adds behind others.

    Attributes:
        text: a special token has its name; a part of a character is written as `bytes:\\xe4\\xbd`.
        data: the token's bytes.
    """

    text: str
    data: bytes


class TokenText:
    """Turns tokens into text, and names each of them.

    A detokenizer of OpenVINO is a graph, and a call takes longer than a server has for a token. Where text
    is the bytes of the tokens one after the other (`TokenBytes`), no graph is called.
    """

    def __init__(self, tokenizer: openvino_genai.Tokenizer) -> None:
        self._tokenizer, self._graph = tokenizer, GraphText(tokenizer)
        self._bytes = TokenBytes.of(tokenizer)
        self._names: dict[int, str] = {}

    @cached_property
    def cleans_up(self) -> bool:
        """As of `DecodesTokens`."""
        return self._graph.cleans_up if self._bytes is None else self._bytes.cleans

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of several tokens, without the special ones."""
        return self._graph.decode(tokens) if self._bytes is None else self._bytes.decode(tokens)

    def shows(self, token: int) -> bool:
        """As of `DecodesTokens`."""
        return self._bytes is None or self._bytes.of_token(token) != b""

    def pieces(self, before: Sequence[int], tokens: Sequence[int]) -> list[Piece]:
        """What each of `tokens` would add behind `before`, the last tokens of prompt and answer."""
        if self._bytes is None:
            return self._by_graph(before, tokens)
        known = b"".join(map(self._bytes.of_token, before))
        return [self._piece(self._bytes, known, token) for token in tokens]

    def _piece(self, table: TokenBytes, known: bytes, token: int) -> Piece:
        data = table.of_token(token)
        if not data:
            name = self._name(token)
            return Piece(name, name.encode())
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return Piece(_escaped(data), data)
        if table.strips or table.cleans:
            text = added(table.text(known), table.text(known + data))
        return Piece(text, text.encode())

    def _by_graph(self, before: Sequence[int], tokens: Sequence[int]) -> list[Piece]:
        known, found = self.decode(before), []
        for token, whole in zip(tokens, self._tokenizer.decode([[*before, t] for t in tokens]), strict=True):
            text = added(known, whole) or self._name(token)
            data = bytes_of_name(self._vocabulary[token]) if "�" in text else text.encode()
            found.append(Piece(text if data == text.encode() else _escaped(data), data))
        return found

    @cached_property
    def _vocabulary(self) -> list[bytes]:
        return names_of(self._tokenizer)

    def _name(self, token: int) -> str:
        """A token by itself; a special one by its name."""
        if token not in self._names:
            self._names[token] = str(self._tokenizer.decode([token], skip_special_tokens=False))
        return self._names[token]


def added(before: str, whole: str) -> str:
    """What `whole` adds behind `before`.

    The longer text may lack spaces of the shorter one, which punctuation has taken, and may have a character
    where that had a part of one.
    """
    if whole.startswith(before):
        return whole[len(before) :]
    at = 0
    for character in before:
        if whole[at : at + 1] == character:
            at += 1
        elif character != " ":
            break
    return whole[at:]


def _escaped(data: bytes) -> str:
    """Bytes that are no text, in OpenAI's form."""
    return "bytes:" + "".join(chr(one) if 32 <= one < 127 else f"\\x{one:02x}" for one in data)
