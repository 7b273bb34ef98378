"""A user's own drafter; its proposals are checked, so that a mistake cannot change the output."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Any, Protocol

import numpy as np

from ovspec.drafters.drafter import Drafter, Proposal
from ovspec.generation.sequence import Sequence
from ovspec.sampling.sampling import Distribution


class ProposesTokens(Protocol):
    """The protocol of a user's own drafter."""

    def propose(self, context: list[int], k: int) -> Any:
        """Draft at most `k` tokens that may follow `context`.

        Returns:
            `(tokens, probabilities, parents)`. `probabilities` has one row `[vocab]` per token, the
            distribution it was drawn from, or `None` if the tokens were chosen; `parents` has the index of
            each token's parent (-1: the context) for a tree, or `None` for a chain. Only
            `acceptance_threshold` and `acceptance_rule="block"` read probabilities; without them no proposal
            changes the output. With the latter, the output follows the target's law if these are true.
        """


class UserDrafter(Drafter):
    """Calls the user's object for each sequence in turn and checks what it returns.

    Args:
        proposer: the user's object; its `name`, if it has one, appears in errors.
        vocab_size: of the target.
        no_trees: why the target can't verify trees, empty where it can.
    """

    why_no_trees = "it decides itself what form its drafts have"

    def __init__(self, proposer: ProposesTokens, vocab_size: int, no_trees: str = "") -> None:
        self.name = str(getattr(proposer, "name", type(proposer).__name__))
        self._proposer = proposer
        self._vocab_size = vocab_size
        self._no_trees = no_trees

    def _draft(self, sequences: SequenceOf[Sequence], counts: SequenceOf[int]) -> dict[int, Proposal]:
        return {i: self._ask(list(sequences[i].tokens), k) for i, k in enumerate(counts) if k > 0}

    def _ask(self, context: list[int], k: int) -> Proposal:
        """The proposal of the user's object.

        Raises:
            ValueError: a proposal that can't be verified; it names the drafter.
        """
        answer = self._proposer.propose(context, k)
        if not isinstance(answer, tuple) or len(answer) != 3:
            raise ValueError(
                f"drafter {self.name!r} returned {type(answer).__name__}: return a tuple of tokens, "
                "probabilities or None, parents or None"
            )
        tokens, probabilities, parents = answer
        tokens = self._ints("tokens", tokens)
        if probabilities is not None and len(probabilities) != len(tokens):
            raise ValueError(
                f"drafter {self.name!r} returned {len(probabilities)} rows of probabilities for "
                f"{len(tokens)} tokens: return one for each, or None"
            )
        proposal = Proposal(
            tokens,
            [] if probabilities is None else [self._distribution(row) for row in probabilities],
            None if parents is None else self._ints("parents", parents),
        )
        proposal.checked(self.name, k, self._vocab_size)
        if proposal.parents == list(range(-1, len(tokens) - 1)):
            proposal.parents = None
        if proposal.parents is not None and self._no_trees:
            raise ValueError(
                f"drafter {self.name!r} returned a tree, which can't be verified: {self._no_trees}; or "
                "return parents=None"
            )
        return proposal

    def _ints(self, what: str, values: Any) -> list[int]:
        try:
            array = np.asarray(values)
        except ValueError:  # lists of several lengths
            array = None
        if array is None or array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
            raise ValueError(f"drafter {self.name!r} returned {what}={values!r}: expected whole numbers")
        return [int(value) for value in array]

    def _distribution(self, row: Any) -> Distribution | None:
        if row is None:
            return None
        try:
            array = np.asarray(row, np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"drafter {self.name!r} returned probabilities that are no row of numbers: expected rows of "
                f"{self._vocab_size}, the target's vocabulary"
            ) from error
        if array.shape != (self._vocab_size,):
            raise ValueError(
                f"drafter {self.name!r} returned probabilities of shape {list(array.shape)}: expected rows "
                f"of {self._vocab_size}, the target's vocabulary"
            )
        try:
            return Distribution.from_probs(array)
        except ValueError as error:
            raise ValueError(f"drafter {self.name!r}: {error}") from error
