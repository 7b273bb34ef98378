"""CacheWrite or the stock node writes the caches in place, and VerifyAttention must not read them before."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import openvino as ov
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from ops.stock import StockRunner, combined_model
from ops.test_stock_graph import BLOCKS, PRECISIONS, TOLERANCES, Conversation
from tiers import by_tier

from ovspec_transforms import write_caches

SIZES = (8, 4, 64, 64)


def converse(runner: StockRunner, seed: int, passes: int) -> list[NDArray[np.float32]]:
    """Passes with rollbacks through a graph; slots of rejected rows hold other tokens when they start."""
    ours = "slot_mapping" in runner.names  # then there is no stock attention that prompts could take
    chat, outputs = Conversation(*SIZES, seed=seed), []
    rng = np.random.default_rng(seed)
    for number in range(passes):
        rows = [300, 200, 100] if number == 0 else rng.integers(1, 17, 3).tolist()
        _, inputs, exact = chat.step(rows, [ours or number > 0] * 3)
        (out,) = runner(**inputs)
        assert float(np.abs(out - exact).max()) < 5e-6, f"pass {number}"
        outputs.append(out)
        chat.rollback([int(rng.integers(0, r + 1)) if number else 0 for r in rows])
    return outputs


def model_of(ours: bool) -> ov.Model:
    """With CacheWrite, or with the stock node that writes."""
    model = combined_model(*SIZES)
    if ours:
        write_caches(model, ov.Type.f32)
    return model


@pytest.mark.slow
@pytest.mark.parametrize(("streams", "ours"), list(product([1, 2], [False, True])))
def test_many_passes_and_threads_in_the_plugin(streams: int, ours: bool) -> None:
    properties = {**PRECISIONS["f32"], "INFERENCE_NUM_THREADS": "2", "NUM_STREAMS": str(streams)}
    model = model_of(ours)
    runners = [StockRunner(model.clone(), BLOCKS, **properties) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda numbered: converse(numbered[1], numbered[0], 40), enumerate(runners)))
    for seed, outputs in enumerate(together):
        alone = converse(StockRunner(model.clone(), BLOCKS, **properties), seed, 40)
        assert all(np.array_equal(a, b) for a, b in zip(outputs, alone, strict=True))


@pytest.mark.parametrize("ours", by_tier([False, True], [True]))
def test_requests_of_one_compiled_model_in_the_plugin(ours: bool) -> None:
    """Workspaces of the operation are shared by all requests of a process; caches are not."""
    runners = [StockRunner(model_of(ours), BLOCKS, **PRECISIONS["f32"])]
    for _ in range(3):
        runners.append(runners[0].another())
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda numbered: converse(numbered[1], numbered[0], 25), enumerate(runners)))


PLUGIN: dict[str, StockRunner] = {}


@settings(max_examples=25, deadline=None)
@given(
    precision=st.sampled_from(["f32", "f16", "u8-by-token", "u8-by-channel"]),
    seed=st.integers(0, 2**31),
    passes=st.lists(
        st.tuples(
            st.lists(st.integers(1, 64), min_size=3, max_size=3),
            st.lists(st.booleans(), min_size=3, max_size=3),
            st.lists(st.integers(0, 64), min_size=3, max_size=3),
        ),
        min_size=1,
        max_size=5,
    ),
)
def test_random_passes_and_rollbacks_through_the_plugin(
    precision: str, seed: int, passes: list[tuple[list[int], list[bool], list[int]]]
) -> None:
    if precision not in PLUGIN:
        PLUGIN[precision] = StockRunner(combined_model(*SIZES), BLOCKS, **PRECISIONS[precision])
    chat = Conversation(*SIZES, seed=seed)
    for rows, verified, rejected in passes:
        _, inputs, exact = chat.step(rows, verified)
        (out,) = PLUGIN[precision](**inputs)
        assert float(np.abs(out - exact).max()) <= 2 * TOLERANCES[precision]
        chat.rollback([min(a, b) for a, b in zip(rows, rejected, strict=True)])
