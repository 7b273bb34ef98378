"""Random passes against the reference: block tables, lists, trees, windows, sinks, sizes and formats."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from ops.caches import FORMATS
from ops.compare import assert_close
from ops.conftest import runnable
from ops.passes import OpsPass, attention_tensors, evaluate

from ovspec_ops import loader
from ovspec_ops.verify_attention import verify_attention

SEQUENCE = st.tuples(st.integers(0, 300), st.integers(1, 64), st.booleans())
SIZE = st.integers(1, 20).map(lambda eighths: 8 * eighths)


@settings(max_examples=120, deadline=None)
@given(
    isa=st.sampled_from(runnable()),
    fmt=st.sampled_from(FORMATS),
    sequences=st.lists(SEQUENCE, min_size=1, max_size=3),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 5),
    k_size=SIZE,
    v_size=SIZE,
    window=st.sampled_from([0, 0, 1, 40, 200]),
    keep=st.sampled_from([None, None, 0.2, 0.7]),
    sinks=st.booleans(),
    tree=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_random_passes(
    isa: str,
    fmt: str,
    sequences: list[tuple[int, int, bool]],
    kv_heads: int,
    group: int,
    k_size: int,
    v_size: int,
    window: int,
    keep: float | None,
    sinks: bool,
    tree: bool,
    seed: int,
) -> None:
    case = OpsPass(
        sequences, kv_heads, group, k_size, v_size, fmt, seed, window, keep=keep, sinks=sinks, tree=tree
    )
    before = loader.active_isa()
    loader.set_isa(isa)
    try:
        tensors = attention_tensors(case)
        (out,) = evaluate("VerifyAttention", tensors, case.attributes)
    finally:
        loader.set_isa(before)
    reference = verify_attention(**case.inputs, **case.attributes)
    assert np.isfinite(reference).all()
    assert_close("VerifyAttention", reference, out, 3e-4 if fmt.startswith("u8") else 1e-5)
