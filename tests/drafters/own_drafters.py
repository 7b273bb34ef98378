"""Every drafter, for tests of the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from families import Family

from ovspec.drafters import (
    AssistantDrafter,
    AutoDrafter,
    LayerSkipDrafter,
    PromptLookupDrafter,
    SparseSelfDrafter,
    SuffixDrafter,
    UserDrafter,
)
from ovspec.drafters.corpus import Corpus
from ovspec.drafters.drafter import Drafter
from ovspec.drafters.prompt_lookup import as_text, lookup
from ovspec_models.folder.sparse_verify import SparseVerify

SPARSE = SparseVerify(L0=16, rho=0.1)


class Chance:
    """A user's drafter: random tokens, with the probabilities that they were drawn from."""

    name = "chance"

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._rng = np.random.default_rng(5)

    def propose(self, context: list[int], k: int) -> tuple[list[int], list[Any], None]:
        q = self._rng.dirichlet(np.full(self._vocab_size, 0.5), k)
        return [int(self._rng.choice(self._vocab_size, p=row)) for row in q], list(q), None


class Trees:
    """A user's drafter of trees: one branch from prompt lookup, the others random tokens."""

    name = "trees"

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._rng = np.random.default_rng(6)

    def propose(self, context: list[int], k: int) -> tuple[list[int], list[Any], list[int]]:
        even = np.full(self._vocab_size, 1 / self._vocab_size)
        tokens: list[int] = []
        rows: list[Any] = []
        parents: list[int] = []
        parent = -1
        for found in lookup(as_text(context), 3, k)[0]:
            # The random one goes before, so that the accepted path has gaps.
            tokens += [int(self._rng.integers(self._vocab_size)), found]
            rows += [even, None]
            parents += [parent, parent]
            parent = len(tokens) - 1
        return tokens[:k], rows[:k], parents[:k]


def _assistant(models: Family) -> AssistantDrafter:
    return AssistantDrafter(models.draft, models.vocab_size, 128, sparse=SPARSE)


def _suffix(models: Family) -> SuffixDrafter:
    return SuffixDrafter(Corpus(np.array(models.prompts[-1] + models.prompts[-2])))


DRAFTERS: dict[str, Callable[[Family], Drafter]] = {
    "assistant": _assistant,
    "prompt_lookup": lambda models: PromptLookupDrafter(),
    "suffix": _suffix,
    "sparse_self": lambda models: SparseSelfDrafter(models.target, SPARSE),
    "layer_skip": lambda models: LayerSkipDrafter(models.target, 0.4, SPARSE),
    "auto": lambda models: AutoDrafter(_suffix(models), _assistant(models)),
    "own": lambda models: UserDrafter(Chance(models.vocab_size), models.vocab_size),
    "own trees": lambda models: UserDrafter(Trees(models.vocab_size), models.vocab_size),
}
