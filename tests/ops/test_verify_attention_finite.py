"""Masked keys and values do not change a row, also where they are NaN or infinite."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from ops.caches import BLOCK
from ops.passes import OpsPass, attention_tensors, evaluate

FORMATS = ("f32", "f16", "bf16", "u8_token")
WRONG = {"NaN": np.nan, "infinity": np.inf}


def run(case: OpsPass) -> NDArray[np.float32]:
    out: NDArray[np.float32] = evaluate("VerifyAttention", attention_tensors(case), case.attributes)[0]
    return out


def spoil(case: OpsPass, name: str, slots: range | list[int], value: float) -> None:
    """The slots of sequence 0 hold what is not finite: by token the scale, else all channels."""
    cache = case.inputs[name]
    table = case.inputs["verify_block_indices"]
    for slot in slots:
        row = cache[table[slot // BLOCK], :, slot % BLOCK]
        if case.fmt == "u8_token":
            row[:, :4] = np.frombuffer(np.float32(value).tobytes(), np.uint8)
        elif case.fmt == "bf16":
            row[:] = np.float32(value).view(np.uint32) >> 16
        else:
            row[:] = value


def assert_same(expected: NDArray[np.float32], got: NDArray[np.float32], rows: list[int]) -> None:
    differ = [r for r in rows if expected[r].tobytes() != got[r].tobytes()]
    assert not differ, f"rows {differ} differ: {got[differ[0]]}"


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("cache", ["key_cache", "value_cache"])
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("rows", [2, 3, 9, 40])
def test_a_later_row_that_is_not_finite(isa: str, fmt: str, cache: str, wrong: str, rows: int) -> None:
    clean, spoilt = (
        OpsPass([(45, rows, True)], fmt=fmt, group=1, k_size=24, v_size=40, sinks=True) for _ in range(2)
    )
    spoil(spoilt, cache, [45 + rows - 1], WRONG[wrong])
    out = run(spoilt)
    assert_same(run(clean), out, list(range(rows - 1)))
    if cache == "value_cache":
        assert not np.isfinite(out[-1]).any(), "the row itself sees it"


@pytest.mark.parametrize("fmt", [*FORMATS, "u8_channel"])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 9, 40])
def test_a_query_that_is_nan(isa: str, fmt: str, sinks: bool, rows: int) -> None:
    """Its own row is NaN, also where a sink could take all of the weight."""
    clean, spoilt = (OpsPass([(700, rows, True)], fmt=fmt, group=2, sinks=sinks) for _ in range(2))
    spoilt.inputs["query"][rows - 1] = np.nan
    out = run(spoilt)
    assert_same(run(clean), out, list(range(rows - 1)))
    assert np.isnan(out[rows - 1]).all()


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("rows", [4, 20])
def test_another_branch_that_is_not_finite(isa: str, fmt: str, rows: int) -> None:
    clean, spoilt = (OpsPass([(61, rows, True)], fmt=fmt) for _ in range(2))
    for case in (clean, spoilt):  # row 1 and the rows after it are branches from row 0
        case.inputs["verify_parents"] = np.array([-1, 0, 0, *range(2, rows - 1)], np.int32)
    spoil(spoilt, "value_cache", [62], np.nan)
    assert_same(run(clean), run(spoilt), [0, *range(2, rows)])


@pytest.mark.parametrize("wrong", WRONG)
def test_a_later_block_by_channel_that_is_not_finite(isa: str, wrong: str) -> None:
    """Rows 0 and 1 fill block 2; the rows after them, in block 3, share a visit with it."""
    clean, spoilt = (OpsPass([(94, 12, True)], fmt="u8_channel") for _ in range(2))
    scales = spoilt.inputs["key_cache"][spoilt.inputs["verify_block_indices"][3], :, :4]
    scales[...] = np.resize(np.frombuffer(np.float32(WRONG[wrong]).tobytes(), np.uint8), scales.shape)
    assert_same(run(clean), run(spoilt), [0, 1])


@pytest.mark.parametrize("fmt", [*FORMATS, "u8_channel"])
@pytest.mark.parametrize("rows", [1, 12])
def test_blocks_behind_the_window_are_not_read(isa: str, fmt: str, rows: int) -> None:
    """The window of 40 tokens begins in block 3; block 2, the even one before it, may be recycled memory."""
    clean, spoilt = (OpsPass([(145, rows, True)], fmt=fmt, window=40) for _ in range(2))
    for cache in ("key_cache", "value_cache"):
        spoilt.inputs[cache][spoilt.inputs["verify_block_indices"][:3]] = 255  # as bytes, NaN as floats
        if fmt in ("f32", "f16"):
            spoilt.inputs[cache][spoilt.inputs["verify_block_indices"][:3]] = np.nan
        elif fmt == "bf16":
            spoilt.inputs[cache][spoilt.inputs["verify_block_indices"][:3]] = 0x7FC0
    assert_same(run(clean), run(spoilt), list(range(rows)))
