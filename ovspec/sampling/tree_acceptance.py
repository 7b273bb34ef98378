"""Acceptance of a draft tree: which path is accepted, and which token follows.

A tree proposes several tokens for a position. Greedy decoding follows the target's own choices while they are
in the tree. Sampling uses the multi-step rejection of SpecInfer (arXiv 2305.09781): the children of a node
are tried in turn; after a rejection, p becomes norm(max(0, p - q)) for the next child. The output follows p
whatever the tree contains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ovspec.sampling.acceptance import RandomStreams
from ovspec.sampling.sampling import Distribution

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
        node = next((child for child in _children(parents, path) if tokens[child] == token), None)
        if node is None:
            return AcceptedPath(path, token)
        path = [*path, node]


def sample_path(
    tokens: Sequence[int],
    parents: Sequence[int],
    q: Sequence[Distribution | None] | None,
    p: Callable[[list[int]], Distribution],
    streams: RandomStreams,
) -> AcceptedPath:
    """Accept a child x with probability min(1, p(x) / q(x)); after a rejection p is norm(max(0, p - q)).

    Args:
        tokens: of all nodes. Siblings must be drawn independently of each other.
        parents: of each node the index of its parent, or `ROOT`.
        q: what each token was drawn from; `None`, for one or for all, is a token that was chosen.
        p: `p(path)` is the target's distribution after a path. Called once per accepted node and once more.
        streams: random numbers.
    """
    path: list[int] = []
    while True:
        remaining = p(path)
        accepted = None
        for child in _children(parents, path):
            x = tokens[child]
            reported = None if q is None else q[child]
            q_x = Distribution.one_hot(x) if reported is None else reported
            if streams.accept.random() * q_x.prob(x) < remaining.prob(x):
                accepted = child
                break
            # If p and q agree up to rounding, no residual mass is left; p itself is then exact enough.
            remaining = remaining.residual(q_x) or remaining
        if accepted is None:
            return AcceptedPath(path, remaining.sample(streams.residual.random()))
        path = [*path, accepted]


def depth(parents: Sequence[int]) -> int:
    """Tokens on the longest path."""
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent == ROOT else depths[parent] + 1)
    return max(depths, default=0)


def _children(parents: Sequence[int], path: Sequence[int]) -> list[int]:
    last = path[-1] if path else ROOT
    return [node for node, parent in enumerate(parents) if parent == last]
