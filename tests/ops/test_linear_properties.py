"""Random layers of Linear against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ops.compare import assert_close
from ops.properties import examples
from ops.test_linear import FORMS, TOPS, Layers, reference, tolerance


# Formats are parameters, not drawn, so that every run has each.
@pytest.mark.parametrize(("fmt", "row_bits"), sorted({(fmt, row_bits) for fmt, _, row_bits in FORMS}))
@examples(15)
@given(
    inputs=st.integers(1, 300) | st.sampled_from([511, 512, 513, 1000]),
    groups=st.sampled_from([1, 1, 2, 3, 7, 10]),
    group=st.integers(1, 21).map(lambda n: 8 * n),
    sizes=st.lists(st.integers(1, 70), max_size=2),
    wide=st.integers(32, 150),
    rows=st.integers(1, 20) | st.sampled_from([33, 40, 65, 130, 300]),
    zero_point=st.sampled_from([None, 0.0, 0.5, 1.0]),
    seed=st.integers(0, 2**31),
)
def test_random_layers(
    isa: str,
    fmt: str,
    row_bits: int,
    inputs: int,
    groups: int,
    group: int,
    sizes: list[int],
    wide: int,
    rows: int,
    zero_point: float | None,
    seed: int,
) -> None:
    """Zero points at random, or all at a share of the largest integer; half of it makes integers signed."""
    if fmt not in TOPS:
        groups = 1
    if groups > 1:
        inputs = groups * group
    point = None if zero_point is None or fmt not in TOPS else round(zero_point * (TOPS[fmt] - 1))
    layers = Layers(inputs, [*sizes, wide], fmt, groups, row_bits, seed, point)
    hidden = layers.rows(rows, seed + 1)
    got = layers.run(hidden)
    assert [output.shape for output in got] == [(rows, size) for size in layers.sizes]
    # Together: the largest value of one or two neurons may be close to zero.
    expected = np.concatenate(reference(layers, hidden), axis=1)
    assert_close("outputs", expected, np.concatenate(got, axis=1), tolerance(row_bits, fmt))
