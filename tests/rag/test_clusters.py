"""Clusters and subsets, against scikit-learn's and by their definition."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ovspec.rag.clusters import k_means, subsets, word_vectors


@given(st.integers(1, 12), st.integers(1, 6), st.integers(1, 3), st.integers(0, 99))
def test_clusters_are_a_partition_where_no_row_is_nearer_to_another(
    rows: int, k: int, values: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.integers(-values, values + 1, (rows, 2)).astype(np.float32)
    clusters = k_means(vectors, k, rng)
    assert sorted(index for cluster in clusters for index in cluster) == list(range(rows))
    assert len(clusters) == min(k, len(np.unique(vectors, axis=0))) and all(clusters)


def test_groups_apart_are_found() -> None:
    rng = np.random.default_rng(0)
    middles = np.array([[0, 0], [10, 0], [0, 10]])
    vectors = (middles[np.arange(30) % 3] + rng.normal(0, 0.5, (30, 2))).astype(np.float32)
    for seed in range(20):
        clusters = k_means(vectors, 3, np.random.default_rng(seed))
        assert sorted(clusters) == [list(range(first, 30, 3)) for first in range(3)]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 12), st.integers(0, 99))
def test_subsets_have_one_of_each_cluster_and_differ(sizes: list[int], most: int, seed: int) -> None:
    indices = iter(range(sum(sizes)))
    clusters = [[next(indices) for _ in range(size)] for size in sizes]
    found = subsets(clusters, most, np.random.default_rng(seed))
    assert len(found) == len(set(found)) == min(most, math.prod(sizes))
    assert all(index in cluster for chosen in found for index, cluster in zip(chosen, clusters, strict=True))


def test_texts_with_the_same_words_have_near_vectors() -> None:
    vectors = word_vectors(["a red ball", "the red balloon ball", "prices of oil rose", ""])
    alike = vectors @ vectors.T
    assert alike[0, 1] > 0.3 and alike[0, 2] == 0.0 and np.allclose(np.diag(alike), [1, 1, 1, 0])
