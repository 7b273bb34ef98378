"""Acceptance of a draft tree: which path is accepted, and which token follows.

A tree proposes several tokens for a position. Decoding follows the target's own choices while they are in the
tree, so the output is the target's whatever the tree contains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

ROOT = -1


@dataclass(frozen=True, slots=True)
class AcceptedPath:
    """Outcome of one verification.

    Attributes:
        nodes: indices of the accepted tokens, root first.
        next_token: the token that follows them.
    """

    nodes: list[int]
    next_token: int


def follow_choices(
    tokens: Sequence[int], parents: Sequence[int], choice: Callable[[list[int]], int]
) -> AcceptedPath:
    """Accept children while one of them is the target's own choice.

    Args:
        tokens: of all nodes.
        parents: of each node the index of its parent, or `ROOT`.
        choice: the target's token after a path, given as the indices of its nodes. Called once per accepted
            node and once more.
    """
    path: list[int] = []
    while True:
        token = choice(path)
        wanted = (path[-1] if path else ROOT, token)
        node = next((node for node, of in enumerate(zip(parents, tokens, strict=True)) if of == wanted), None)
        if node is None:
            return AcceptedPath(path, token)
        path = [*path, node]


def depth(parents: Sequence[int]) -> int:
    """Tokens on the longest path."""
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent == ROOT else depths[parent] + 1)
    return max(depths, default=0)
