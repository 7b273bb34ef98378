"""Log probabilities of a prompt's tokens, with their names and places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any

from ovspec.engine.requests.request import TokenLogprobs
from ovspec.generation.detokenizer import IncrementalDetokenizer
from ovspec.generation.token_text import Piece, TokenText

# Tokens before one that say what it adds to the text.
_BEFORE = 16


@dataclass(frozen=True, slots=True)
class NamedLogprobs:
    """Log probabilities at one position, with the names of the tokens.

    Attributes:
        token: that stands there.
        piece: its name.
        offset: where it begins in the text.
        logprob: of this token; `None` for the first of a prompt.
        top: the most probable ones, the highest first: id, name, log probability.
    """

    token: int
    piece: Piece
    offset: int
    logprob: float | None
    top: list[tuple[int, Piece, float]]


class PromptText:
    """The tokens of a prompt as text, which takes long for a long prompt: call it in a thread.

    Args:
        tokens: of the prompt.
    """

    def __init__(self, token_text: TokenText, tokens: Sequence[int]) -> None:
        self._token_text, self._tokens = token_text, tokens

    @property
    def text(self) -> str:
        """Of all tokens."""
        return self._read.text

    @cached_property
    def _read(self) -> IncrementalDetokenizer:
        detokenizer = IncrementalDetokenizer(self._token_text)
        for token in self._tokens:
            detokenizer.update([token])
        detokenizer.finish()
        return detokenizer

    def named(self, logprobs: Sequence[TokenLogprobs], top: int) -> list[NamedLogprobs]:
        """Every token with its log probability, and so many alternatives.

        Args:
            logprobs: of all tokens but the first; fewer where the request ended before it was read.
        """
        found = []
        for place, token in enumerate(self._tokens):
            known = logprobs[place - 1] if 0 < place <= len(logprobs) else None
            others = list(known.top[:top]) if known else []
            before = self._tokens[max(0, place - _BEFORE) : place]
            piece, *names = self._token_text.pieces(before, [token, *(other for other, _ in others)])
            offset = self._read.ends[place - 1] if place else 0
            named = [(other, name, value) for (other, value), name in zip(others, names, strict=True)]
            found.append(NamedLogprobs(token, piece, offset, known.logprob if known else None, named))
        return found

    def of_vllm(self, logprobs: Sequence[TokenLogprobs], top: int) -> list[dict[str, Any] | None]:
        """vLLM's `prompt_logprobs`: by token id, the prompt's own token first."""
        entries: list[dict[str, Any] | None] = []
        for token, one, known in zip_longest(self._tokens, self.named(logprobs, top), [None, *logprobs]):
            if known is None:
                entries.append(None)
                continue
            entry = {str(token): _shown(known.logprob, known.rank, one.piece)}
            for rank, (other, piece, value) in enumerate(one.top, 1):
                entry.setdefault(str(other), _shown(value, rank, piece))
            entries.append(entry)
        return entries


def _shown(logprob: float, rank: int, piece: Piece) -> dict[str, Any]:
    return {"logprob": logprob, "rank": rank, "decoded_token": piece.text}
