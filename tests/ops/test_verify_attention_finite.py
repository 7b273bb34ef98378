"""Masked keys and values do not change a row, also where they are NaN or infinite."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from ops.caches import BLOCK
from ops.compare import assert_close
from ops.passes import OpsPass, attend
from ops.properties import examples
from ops.test_verify_attention import tolerance

from ovspec_ops.verify_attention import verify_attention

FORMATS = ("f32", "f16", "bf16", "u8_token")
ROWS = st.integers(1, 4) | st.integers(5, 40)  # few rows and many go different ways
WRONG = {"NaN": np.nan, "infinity": np.inf}


def spoil(case: OpsPass, name: str, slots: range | list[int], value: float) -> None:
    """The slots of sequence 0 hold what is not finite: by token the scale, by channel their block's scales,
    else all channels."""
    cache = case.inputs[name]
    fmt = case.key_format if name == "key_cache" else case.value_format
    table = case.inputs["verify_block_indices"]
    scale = np.frombuffer(np.float32(value).tobytes(), np.uint8)
    for slot in slots:
        block = cache[table[slot // BLOCK]]
        row = block[:, slot % BLOCK]
        if fmt == "u8_token":
            row[:, :4] = scale
        elif fmt == "u8_channel":
            block[:, :4] = np.resize(scale, block[:, :4].shape)
        elif fmt == "bf16":
            row[:] = np.float32(value).view(np.uint32) >> 16
        else:
            row[:] = value


def assert_same(expected: NDArray[np.float32], got: NDArray[np.float32], rows: list[int]) -> None:
    differ = [r for r in rows if expected[r].tobytes() != got[r].tobytes()]
    assert not differ, f"rows {differ} differ: {got[differ[0]]}"


@pytest.mark.parametrize("cache", ["key_cache", "value_cache"])
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(("wrong", "rows"), [("infinity", 2), ("NaN", 3), ("NaN", 9), ("infinity", 40)])
def test_a_later_row_that_is_not_finite(isa: str, fmt: str, cache: str, wrong: str, rows: int) -> None:
    clean, spoilt = (
        OpsPass([(45, rows, True)], fmt=fmt, group=1, k_size=24, v_size=40, sinks=True) for _ in range(2)
    )
    spoil(spoilt, cache, [45 + rows - 1], WRONG[wrong])
    out = attend(spoilt)
    assert_same(attend(clean), out, list(range(rows - 1)))
    if cache == "value_cache":
        assert not np.isfinite(out[-1]).any(), "the row itself sees it"
    elif wrong == "NaN":
        assert np.isfinite(out[-1]).all(), "the row itself gives it no weight"


@pytest.mark.parametrize("fmt", [*FORMATS, "u8_channel"])
@examples(4)
@given(rows=ROWS)
def test_a_seen_key_that_is_nan_takes_no_weight(isa: str, fmt: str, rows: int) -> None:
    """Nor does its value: the last row is as with a window that begins after both. Without another key a row
    is NaN."""
    keys = BLOCK if fmt == "u8_channel" else 1
    spoilt, after = (
        OpsPass([(45, rows, True)], fmt=fmt, sinks=True, window=w) for w in (0, 45 + rows - keys)
    )
    for cache in ("key_cache", "value_cache"):
        spoil(spoilt, cache, [0], np.nan)
    expected = verify_attention(**after.inputs, **after.attributes)
    assert_close("last row", expected[-1], attend(spoilt)[-1], tolerance(fmt))
    alone = OpsPass([(0, rows, True)], fmt=fmt, sinks=True)
    spoil(alone, "key_cache", [0], np.nan)
    out = attend(alone)
    assert np.isnan(out[:keys]).all()
    assert np.isfinite(out[keys:]).all()


@pytest.mark.parametrize("fmt", [*FORMATS, "u8_channel"])
@pytest.mark.parametrize(("sinks", "rows"), [(False, 1), (True, 2), (False, 9), (True, 40)])
def test_a_query_that_is_nan(isa: str, fmt: str, sinks: bool, rows: int) -> None:
    """Its own row is NaN, also where a sink could take all of the weight."""
    clean, spoilt = (OpsPass([(700, rows, True)], fmt=fmt, group=2, sinks=sinks) for _ in range(2))
    spoilt.inputs["query"][rows - 1] = np.nan
    out = attend(spoilt)
    assert_same(attend(clean), out, list(range(rows - 1)))
    assert np.isnan(out[rows - 1]).all()


@pytest.mark.parametrize("fmt", FORMATS)
@examples(3)
@given(rows=st.integers(4, 40))
def test_another_branch_that_is_not_finite(isa: str, fmt: str, rows: int) -> None:
    clean, spoilt = (OpsPass([(61, rows, True)], fmt=fmt) for _ in range(2))
    for case in (clean, spoilt):  # row 1 and the rows after it are branches from row 0
        case.inputs["verify_parents"] = np.array([-1, 0, 0, *range(2, rows - 1)], np.int32)
    spoil(spoilt, "value_cache", [62], np.nan)
    assert_same(attend(clean), attend(spoilt), [0, *range(2, rows)])


@pytest.mark.parametrize("wrong", WRONG)
def test_a_later_block_by_channel_that_is_not_finite(isa: str, wrong: str) -> None:
    """Rows 0 and 1 fill block 2; the rows after them, in block 3, share a visit with it."""
    clean, spoilt = (OpsPass([(94, 12, True)], fmt="u8_channel") for _ in range(2))
    spoil(spoilt, "key_cache", [3 * BLOCK], WRONG[wrong])
    assert_same(attend(clean), attend(spoilt), [0, 1])


@pytest.mark.parametrize("fmt", [*FORMATS, "u8_channel"])
@examples(3)
@given(rows=ROWS)
def test_blocks_behind_the_window_are_not_read(isa: str, fmt: str, rows: int) -> None:
    """The window of 40 tokens begins in block 3; block 2, the even one before it, may be recycled memory."""
    clean, spoilt = (OpsPass([(145, rows, True)], fmt=fmt, window=40) for _ in range(2))
    for cache in ("key_cache", "value_cache"):
        spoilt.inputs[cache][spoilt.inputs["verify_block_indices"][:3]] = 255  # as bytes, NaN as floats
        if fmt in ("f32", "f16"):
            spoilt.inputs[cache][spoilt.inputs["verify_block_indices"][:3]] = np.nan
        elif fmt == "bf16":
            spoilt.inputs[cache][spoilt.inputs["verify_block_indices"][:3]] = 0x7FC0
    assert_same(attend(clean), attend(spoilt), list(range(rows)))
