"""Retrieved documents in clusters, and subsets that have one document of each."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 50


def word_vectors(texts: Sequence[str]) -> NDArray[np.float32]:
    """TF-IDF vectors f32 `[texts, words]` of length 1, for a store without an embedding model."""
    counted = [re.findall(r"\w+", text.lower()) for text in texts]
    places = {word: place for place, word in enumerate(sorted(set(itertools.chain(*counted))))}
    counts = np.zeros((len(texts), max(1, len(places))), np.float32)
    for row, words in zip(counts, counted, strict=True):
        np.add.at(row, [places[word] for word in words], 1.0)
    weights = np.log((1 + len(texts)) / (1 + np.count_nonzero(counts, axis=0))) + 1.0
    vectors = counts * weights
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    found: NDArray[np.float32] = (vectors / np.maximum(lengths, 1e-12)).astype(np.float32)
    return found


def k_means(vectors: NDArray[np.float32], k: int, rng: np.random.Generator) -> list[list[int]]:
    """Clusters of the rows of `vectors` `[rows, dimensions]`: indices, none empty.

    There are `k` of them, or fewer where the rows have fewer different values. It begins as k-means++.
    """
    k = min(k, len(np.unique(vectors, axis=0)))
    centres = vectors[[int(rng.integers(len(vectors)))]]
    while len(centres) < k:
        nearest = _distances(vectors, centres).min(axis=1)
        chosen = rng.choice(len(vectors), p=nearest / nearest.sum())
        centres = np.concatenate([centres, vectors[[chosen]]])
    labels = _distances(vectors, centres).argmin(axis=1)
    for _ in range(_ROUNDS):
        centres = np.stack(
            [vectors[labels == c].mean(axis=0) if (labels == c).any() else centres[c] for c in range(k)]
        )
        distances = _distances(vectors, centres)
        moved = distances.argmin(axis=1)
        for empty in set(range(k)) - set(moved.tolist()):
            # The row that fits its cluster least begins one of its own, if that leaves others there.
            sizes = np.bincount(moved, minlength=k)
            own = distances[np.arange(len(vectors)), moved]
            moved[int(np.where(sizes[moved] > 1, own, -1.0).argmax())] = empty
        if (moved == labels).all():
            break
        labels = moved
    return [np.flatnonzero(labels == c).tolist() for c in range(k)]


def subsets(clusters: Sequence[Sequence[int]], most: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Different subsets with one index of each cluster, drawn at random: `most`, or all that there are."""
    possible = math.prod(map(len, clusters))
    if possible <= most:
        return list(itertools.product(*clusters))
    found: dict[tuple[int, ...], None] = {}
    while len(found) < most:
        found[tuple(int(rng.choice(cluster)) for cluster in clusters)] = None
    return list(found)


def _distances(vectors: NDArray[np.float32], centres: NDArray[np.float32]) -> NDArray[np.float64]:
    """Squared distances `[rows, centres]`."""
    found: NDArray[np.float64] = np.square(vectors[:, None].astype(np.float64) - centres[None]).sum(axis=2)
    return found
