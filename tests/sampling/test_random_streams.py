"""The random streams of drafting, acceptance and residual draws are reproducible and independent."""

from __future__ import annotations

import itertools

import numpy as np

from ovspec.sampling.acceptance import RandomStreams, speculative_sample
from ovspec.sampling.sampling import Distribution


def test_streams_are_reproducible_and_differ_by_seed_and_sequence() -> None:
    def draws(seed: int, sequence: int) -> list[list[float]]:
        streams = RandomStreams(seed, sequence)
        return [stream.random(4).tolist() for stream in (streams.draft, streams.accept, streams.residual)]

    assert draws(3, 1) == draws(3, 1)
    every = [
        tuple(row)
        for seed, sequence in itertools.product(range(4), range(4))
        for row in draws(seed, sequence)
    ]
    assert len(set(every)) == len(every) == 48


def test_use_of_one_stream_leaves_the_others_alone() -> None:
    untouched, used = RandomStreams(12, 4), RandomStreams(12, 4)
    used.draft.random(1000)
    assert untouched.accept.random(50).tolist() == used.accept.random(50).tolist()
    used.accept.random(1000)
    assert untouched.residual.random(50).tolist() == used.residual.random(50).tolist()


def test_streams_are_not_correlated() -> None:
    streams = RandomStreams(0)
    draws = np.array([stream.random(20_000) for stream in (streams.draft, streams.accept, streams.residual)])
    correlation = np.corrcoef(draws)
    assert np.abs(correlation[np.triu_indices(3, 1)]).max() < 4 / np.sqrt(20_000)


def test_a_round_uses_one_uniform_per_tested_token_and_one_for_the_next() -> None:
    streams, fresh = RandomStreams(2), RandomStreams(2)
    speculative_sample([1, 1, 1], None, lambda i: Distribution.one_hot(1 if i < 1 else 0), streams)
    fresh.accept.random(2)
    fresh.residual.random(1)
    assert streams.accept.random() == fresh.accept.random()
    assert streams.residual.random() == fresh.residual.random()
    assert streams.draft.random() == fresh.draft.random()
