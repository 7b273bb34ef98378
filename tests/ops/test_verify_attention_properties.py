"""Random passes against the reference: block tables, lists, trees, windows, sinks, sizes and formats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ops.caches import FORMATS
from ops.compare import assert_close
from ops.passes import OpsPass, attention_tensors, evaluate
from ops.properties import examples
from ops.test_verify_attention import tolerance

from ovspec_ops.verify_attention import verify_attention

# Around borders of blocks and chunks, few rows and many.
PAST = st.integers(0, 300) | st.sampled_from([0, 1, 31, 32, 33, 63, 64, 255, 256, 257, 600])
ROWS = st.integers(1, 8) | st.integers(9, 64)
SEQUENCE = st.tuples(PAST, ROWS, st.sampled_from([True, True, True, False]))
WINDOW = st.sampled_from([1, 5, 31, 32, 33, 40, 100, 200, 2**31 - 1])
# What rows see of each other and of the past: those that are refused together are not among them.
SIGHT = st.one_of(
    st.fixed_dictionaries({"window": st.just(0) | WINDOW, "tree": st.booleans()}),
    st.fixed_dictionaries({"past_window": WINDOW, "tree": st.booleans()}),
    st.fixed_dictionaries({"past_window": st.just(0) | WINDOW, "causal": st.just(False)}),
)
SIZE = st.integers(1, 20).map(lambda eighths: 8 * eighths) | st.sampled_from([64, 128, 256])


@pytest.mark.parametrize("fmt", FORMATS)
@examples(8)
@given(
    sequences=st.lists(SEQUENCE, min_size=1, max_size=3),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 5) | st.just(8),
    k_size=SIZE,
    v_size=SIZE,
    sight=SIGHT,
    keep=st.sampled_from([None, None, 0.0, 0.3, 1.0]),
    sinks=st.booleans(),
    seed=st.integers(0, 2**31),
)
@example(
    sequences=[(70, 7, True)],
    kv_heads=3,
    group=2,
    k_size=24,
    v_size=40,
    sight={},
    keep=None,
    sinks=False,
    seed=0,
)
@example(
    sequences=[(71, 5, True), (40, 9, False), (290, 2, True)],
    kv_heads=2,
    group=8,
    k_size=72,
    v_size=40,
    sight={"tree": True},
    keep=0.3,
    sinks=True,
    seed=1,
)
@example(  # more rows than are worked on together
    sequences=[(45, 150, True), (3, 70, True)],
    kv_heads=1,
    group=2,
    k_size=24,
    v_size=40,
    sight={"causal": False, "past_window": 7},
    keep=None,
    sinks=False,
    seed=2,
)
def test_random_passes(
    isa: str,
    fmt: str,
    sequences: list[tuple[int, int, bool]],
    kv_heads: int,
    group: int,
    k_size: int,
    v_size: int,
    sight: dict[str, Any],
    keep: float | None,
    sinks: bool,
    seed: int,
) -> None:
    case = OpsPass(sequences, kv_heads, group, k_size, v_size, fmt, seed, keep=keep, sinks=sinks, **sight)
    (out,) = evaluate("VerifyAttention", attention_tensors(case), case.attributes)
    reference = verify_attention(**case.inputs, **case.attributes)
    assert np.isfinite(reference).all()
    assert_close("VerifyAttention", reference, out, tolerance(fmt))
