"""Tokens that one of two grammars lets follow a sequence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ovspec.sampling.constraint import Constraint, GrammarError


class EitherConstraint(Constraint):
    """Two grammars, of which the one or the other is followed to its end.

    llguidance can't have both in one: where a word of the one begins as a word of the other, its lexer goes
    on with the longer, and the other grammar is lost.

    Args:
        parts: the grammars at their beginning; they belong to this object.
    """

    def __init__(self, *parts: Constraint) -> None:
        self._parts = parts

    def extend(self, tokens: Sequence[int]) -> None:
        """As of `Constraint`; it goes on in the grammars that allow the tokens."""
        self._going(tokens)
        for part in self._parts:
            part.settle(len(tokens))

    def rollback(self, count: int) -> None:
        """As of `Constraint`; a grammar that did not allow these tokens may go on again."""
        for part in self._parts:
            part.rollback(count)

    def ends(self, tokens: Sequence[int] = ()) -> bool:
        """As of `Constraint`."""
        return all(part.ends(tokens) for part in self._going(tokens))

    def mask(self, drafted: Sequence[int] = ()) -> NDArray[np.bool_]:
        """As of `Constraint`."""
        found: NDArray[np.bool_] = np.logical_or.reduce([part.mask(drafted) for part in self._going(drafted)])
        return found

    def allows(self, drafted: Sequence[int], token: int) -> bool:
        """As of `Constraint`."""
        return any(part.allows(drafted, token) for part in self._going(drafted))

    def forced(self) -> list[int]:
        """As of `Constraint`."""
        first, *others = [part.forced() for part in self._going(())]
        while any(other[: len(first)] != first for other in others):
            first.pop()
        return first

    def _going(self, tokens: Sequence[int]) -> list[Constraint]:
        """The grammars that allow these tokens.

        Raises:
            GrammarError: none does.
        """
        # All of them are asked: each goes to where it has read the tokens.
        going = [part for part, takes in [(part, part.takes(tokens)) for part in self._parts] if takes]
        if not going:
            raise GrammarError("the grammar does not allow what is there")
        return going
