"""Dense verification computes what the plain model computes, whatever happened to the cache before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from engine.reference_model import ReferenceModel
from numpy.typing import NDArray
from settings import F32
from tiers import by_tier

from ovspec.cache.cache import CachedSequence
from ovspec.operations.attention_config import AttentionConfig
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner

TOLERANCE = 1e-4
BLOCK = 32


@pytest.fixture(scope="module", params=["native", "native-selects", "stock"])
def runner(request: pytest.FixtureRequest, demo_ir: Path) -> ModelRunner:
    backend, _, selects = str(request.param).partition("-")
    return ModelRunner(demo_ir, "CPU", AttentionConfig(backend, bool(selects)), F32)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def reference(demo_ir: Path) -> ReferenceModel:
    return ReferenceModel(demo_ir)


def random_tokens(count: int, seed: int = 0) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(2, 4096, count)


def verify(runner: ModelRunner, cached: CachedSequence, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    return np.array(runner.forward([Rows(cached, tokens, sampled=len(tokens))]).logits)


@pytest.mark.parametrize("past", by_tier([1, 7, 30, 31, 32, 33, 63, 64, 65, 200], [31, 32, 200]))
@pytest.mark.parametrize("rows", by_tier([1, 2, 5, 8, 33, 64], [1, 5, 33]))
def test_every_row_agrees_across_block_borders(
    runner: ModelRunner, reference: ReferenceModel, past: int, rows: int
) -> None:
    tokens = random_tokens(past + rows)
    cached = CachedSequence()
    runner.prefill(cached, tokens[:past], chunk=48)
    got = verify(runner, cached, tokens[past:])
    runner.release(cached)
    np.testing.assert_allclose(got, reference.logits(tokens)[past:], atol=TOLERANCE, rtol=0)


def test_prefill_in_chunks_gives_the_last_row(runner: ModelRunner, reference: ReferenceModel) -> None:
    tokens = random_tokens(301)
    for chunk in (1, 31, 32, 100, 301, 512):
        cached = CachedSequence()
        got = np.array(runner.prefill(cached, tokens, chunk).logits)
        runner.release(cached)
        np.testing.assert_allclose(
            got[0], reference.logits(tokens)[-1], atol=TOLERANCE, rtol=0, err_msg=str(chunk)
        )


def test_rollbacks_of_every_length(runner: ModelRunner, reference: ReferenceModel) -> None:
    kept, cached = random_tokens(60), CachedSequence()
    runner.prefill(cached, kept, chunk=512)
    for rejected in range(9):
        # Eight drafts, of which the last `rejected` were wrong, are followed by other tokens in their place.
        draft = random_tokens(8, seed=1 + rejected)
        verify(runner, cached, draft)
        cached.rollback(len(kept) + 8 - rejected)
        kept = np.concatenate([kept, draft[: 8 - rejected]])
        correction = random_tokens(1 + rejected, seed=100 + rejected)
        got = verify(runner, cached, correction)
        kept = np.concatenate([kept, correction])
        want = reference.logits(kept)[-len(correction) :]
        np.testing.assert_allclose(got, want, atol=TOLERANCE, rtol=0, err_msg=f"{rejected} rejected")
    runner.release(cached)


def test_two_interleaved_sequences(runner: ModelRunner, reference: ReferenceModel) -> None:
    tokens = [random_tokens(150, seed=5), random_tokens(220, seed=6)]
    cached = [CachedSequence(), CachedSequence()]
    ends = [40, 97]
    for index in (0, 1):
        runner.prefill(cached[index], tokens[index][: ends[index]], chunk=64)
    for rows in ((3, 5), (8, 1), (1, 8), (5, 5), (4, 33)):
        parts = [tokens[i][ends[i] : ends[i] + rows[i]] for i in (0, 1)]
        batch = [Rows(cached[i], parts[i], sampled=rows[i]) for i in (0, 1)]
        got = np.split(np.array(runner.forward(batch).logits), [rows[0]])
        for i in (0, 1):
            want = reference.logits(tokens[i][: ends[i] + rows[i]])[-rows[i] :]
            np.testing.assert_allclose(
                got[i], want, atol=TOLERANCE, rtol=0, err_msg=f"sequence {i} rows {rows}"
            )
            # One of the two rolls back each time, so that their tables differ.
            back = 1 if rows[i] > 1 else 0
            cached[i].rollback(cached[i].length - back)
            ends[i] += rows[i] - back
    for one in cached:
        runner.release(one)


def test_verification_beside_a_prefill(runner: ModelRunner, reference: ReferenceModel) -> None:
    old, new = random_tokens(90, seed=7), random_tokens(130, seed=8)
    verified, prefilled = CachedSequence(), CachedSequence()
    runner.prefill(verified, old[:85], chunk=512)
    got = np.array(
        runner.forward([Rows(prefilled, new, sampled=1), Rows(verified, old[85:], sampled=5)]).logits
    )
    np.testing.assert_allclose(got[0], reference.logits(new)[-1], atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(got[1:], reference.logits(old)[85:], atol=TOLERANCE, rtol=0)
    runner.release(verified)
    runner.release(prefilled)


def test_growing_the_cache_keeps_its_contents(demo_ir: Path, reference: ReferenceModel) -> None:
    runner = ModelRunner(demo_ir, "CPU", AttentionConfig(), F32)
    first, tokens = CachedSequence(), random_tokens(100)
    runner.prefill(first, tokens[:-3], chunk=512)
    others = []
    for seed in range(4):
        others.append(CachedSequence())
        runner.prefill(others[-1], random_tokens(1500, seed), chunk=512)
    assert runner.blocks.num_blocks >= 3 * 64
    got = verify(runner, first, tokens[-3:])
    np.testing.assert_allclose(got, reference.logits(tokens)[-3:], atol=TOLERANCE, rtol=0)


def test_released_blocks_are_reused(demo_ir: Path) -> None:
    runner = ModelRunner(demo_ir / "draft", "CPU", AttentionConfig("stock"), F32)
    for seed in range(5):
        cached = CachedSequence()
        runner.prefill(cached, random_tokens(20 * BLOCK, seed), chunk=512)
        runner.release(cached)
    assert runner.blocks.num_blocks == 20


def test_rollback_beyond_the_cache_is_refused() -> None:
    cached = CachedSequence(length=3)
    with pytest.raises(ValueError, match="rollback to 4: expected 0 to 3"):
        cached.rollback(4)
