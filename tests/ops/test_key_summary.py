from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from ops.caches import FORMATS, write_block
from ops.passes import OpsPass, compile_op, evaluate, infer
from ops.properties import examples

from ovspec_ops import loader
from ovspec_ops.key_summary.reference import PARTS, key_summary, means, summary_bytes

UNTOUCHED = 7
SEQUENCES = [(70, 5, True), (0, 40, True), (31, 1, True), (32, 1, True), (200, 3, True), (5, 64, True)]


def untouched(case: OpsPass) -> NDArray[np.uint8]:
    size = (len(case.inputs["key_cache"]), case.kv_heads, summary_bytes(case.k_size))
    return np.full(size, UNTOUCHED, np.uint8)


def inputs_of(case: OpsPass) -> tuple[dict[str, ov.Tensor], NDArray[np.uint8]]:
    summary = untouched(case)
    tensors = {
        "key_cache": case.tensor("key_cache"),
        "attention": case.tensor("attention"),
        "key_summary": ov.Tensor(summary, shared_memory=True),
        "verify_tables": ov.Tensor(case.tables),
        "summarised_lens": ov.Tensor(case.summarised),
    }
    return tensors, summary


def reference(case: OpsPass) -> NDArray[np.uint8]:
    lengths = case.tables, case.summarised
    return key_summary(case.inputs["key_cache"], untouched(case), *lengths, k_size=case.k_size)


def sizes(case: OpsPass) -> dict[str, Any]:
    return {"kv_heads": case.kv_heads, "k_size": case.k_size}


def check_summaries(expected: NDArray[np.uint8], got: NDArray[np.uint8], k_size: int) -> None:
    """Mean keys differ by one of their 16 numbers at most, where they lie between two; few do."""
    want, found = (means(summary, k_size) for summary in (expected, got))
    if not want.size:  # no sequence needed any
        return
    steps = np.ascontiguousarray(expected[..., : PARTS * 4]).view(np.float32)
    off = np.abs(want - found) > 1e-5 * np.abs(want).max()
    assert np.all(np.abs(want - found) <= 1.01 * steps[..., None] + 1e-5 * np.abs(want).max())
    assert off.sum() <= max(1, 1e-3 * off.size)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("k_size", [8, 24, 72, 80, 96, 256])
@examples(2)
@given(
    lengths=st.lists(
        st.tuples(st.integers(0, 200), st.integers(1, 64), st.integers(-1, 264)), min_size=1, max_size=4
    ),
    seed=st.integers(0, 2**31),
)
@example(lengths=[(70, 5, 70), (0, 40, 0), (31, 1, -1), (200, 3, 17)], seed=0)
@example(lengths=[(70, 5, -1)], seed=0)
def test_summaries_of_the_tokens_without_them(
    isa: str, fmt: str, k_size: int, lengths: list[tuple[int, int, int]], seed: int
) -> None:
    sequences = [(past, rows, True) for past, rows, _ in lengths]
    case = OpsPass(sequences, kv_heads=3, k_size=k_size, v_size=8, fmt=fmt, seed=seed)
    summarised = [min(length, past + rows - 1) for past, rows, length in lengths]
    case.summarised = np.array(summarised, np.int32)
    tensors, summary = inputs_of(case)
    token = evaluate("KeySummary", tensors, sizes(case))[0]
    assert token.tolist() == [0]
    expected = reference(case)
    written = (expected != UNTOUCHED).any(axis=(1, 2))
    assert np.array_equal((summary != UNTOUCHED).any(axis=(1, 2)), written)
    check_summaries(expected[written], summary[written], k_size)


def test_mean_keys_are_near_those_of_the_tokens(isa: str) -> None:
    case = OpsPass([(0, 61, True)], kv_heads=2, k_size=40)
    tensors, summary = inputs_of(case)
    evaluate("KeySummary", tensors, sizes(case))
    table = case.inputs["verify_block_indices"]
    keys = case.inputs["key_cache"][table[:2]].transpose(1, 0, 2, 3).reshape(2, 64, 40)
    parts = means(summary[table[:2]], 40).transpose(1, 0, 2, 3).reshape(2, 8, 40)
    for part, (begin, end) in enumerate([*((b, b + 8) for b in range(0, 56, 8)), (56, 61)]):
        true = keys[:, begin:end].mean(axis=1)
        step = (true.max(axis=1) - true.min(axis=1)) / 15
        assert np.all(np.abs(parts[:, part] - true) <= 0.51 * step[:, None])


def test_a_key_that_is_no_number_spoils_its_part_alone(isa: str) -> None:
    case = OpsPass([(32, 13, True)], kv_heads=2, k_size=40)
    block = case.inputs["verify_block_indices"][1]
    case.inputs["key_cache"][block, 1, 12, 33] = np.nan
    case.inputs["key_cache"][block, 0, 3, 2] = np.inf
    tensors, summary = inputs_of(case)
    evaluate("KeySummary", tensors, sizes(case))
    scales = np.ascontiguousarray(summary[block, :, : PARTS * 4]).view(np.float32)
    assert np.argwhere(~np.isfinite(scales)).tolist() == [[0, 0], [1, 1]]


@pytest.mark.parametrize("fmt", ["f32", "u8_token"])
def test_rolled_back_and_rewritten_blocks_are_summarised_anew(isa: str, fmt: str) -> None:
    """The second pass ends earlier than the first: nothing of the first one's rows is left in the summary."""
    long = OpsPass([(40, 60, True)], kv_heads=2, k_size=24, fmt=fmt)
    tensors, summary = inputs_of(long)
    evaluate("KeySummary", tensors, sizes(long))
    first = summary.copy()
    rng = np.random.default_rng(5)
    table = long.inputs["verify_block_indices"]
    keys = rng.standard_normal((10, 2, 24)).astype(np.float32) * 9
    write_block(long.inputs["key_cache"], fmt, table[1], keys)
    long.inputs["subsequence_begins"][1] = 2  # 40 tokens before the pass, 2 rows: two blocks
    long.inputs["attention"] = long.inputs["attention"][:2]
    again, _ = inputs_of(long)
    again["key_summary"] = ov.Tensor(summary, shared_memory=True)
    evaluate("KeySummary", again, sizes(long))
    lengths = long.tables, long.summarised
    expected = key_summary(long.inputs["key_cache"], first, *lengths, k_size=24)
    check_summaries(expected[table[1]], summary[table[1]], 24)
    untouched_blocks = [block for block in range(len(summary)) if block != table[1]]
    assert np.array_equal(summary[untouched_blocks], first[untouched_blocks])


def test_plugin_writes_the_tensor_of_the_request(isa: str) -> None:
    case = OpsPass(SEQUENCES, kv_heads=3, k_size=40)
    tensors, summary = inputs_of(case)
    infer(compile_op("KeySummary", tensors, sizes(case)), tensors)
    expected = reference(case)
    written = (expected != UNTOUCHED).any(axis=(1, 2))
    check_summaries(expected[written], summary[written], 40)


def test_a_sequence_that_needs_none_gets_none() -> None:
    case = OpsPass([(40, 2, True), (64, 0, True), (40, 2, False), (70, 3, True)])
    case.summarised = np.array([40, -1, -1, -1], np.int32)
    tensors, summary = inputs_of(case)
    evaluate("KeySummary", tensors, sizes(case))
    assert (summary != UNTOUCHED).any(axis=(1, 2)).sum() == 1


BAD_INPUTS = {
    "past_lens": (
        "verify_past_lens",
        0,
        -1,
        r"KeySummary: summarised_lens\[0\] is 70, expected -1 or less than the 0 tokens of the sequence",
    ),
    "table": ("verify_past_lens", 0, 400, r"KeySummary: verify_block_indices holds 4 blocks for sequence 0"),
    "block": (
        "verify_block_indices",
        2,
        77,
        r"KeySummary: verify_block_indices\[2\] is 77, expected a block id below",
    ),
    "rows": ("subsequence_begins", 6, 999, r"KeySummary: subsequence_begins\[6\] is 999"),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input_is_refused_before_anything_is_written(name: str) -> None:
    case = OpsPass(SEQUENCES)
    field, index, value, message = BAD_INPUTS[name]
    case.inputs[field][index] = value
    tensors, summary = inputs_of(case)
    with pytest.raises(ValueError, match=message):
        evaluate("KeySummary", tensors, sizes(case))
    assert (summary == UNTOUCHED).all()


@pytest.mark.parametrize("lens", [(0, 40), (40, 0), (40, 48)])
def test_a_shared_block_is_made_from_the_first_part_that_lacks_one(isa: str, lens: tuple[int, int]) -> None:
    case = OpsPass([(100, 3, True), (100, 5, True)], kv_heads=3, k_size=40)
    first, second = case.inputs["verify_block_indices_begins"][:2].tolist()
    shared = case.inputs["verify_block_indices"][first : first + 3]  # the full ones
    case.inputs["verify_block_indices"][second : second + 3] = shared
    case.summarised[:] = lens
    tensors, summary = inputs_of(case)
    evaluate("KeySummary", tensors, sizes(case))
    expected = reference(case)
    written = (expected != UNTOUCHED).any(axis=(1, 2))
    assert np.array_equal((summary != UNTOUCHED).any(axis=(1, 2)), written)
    check_summaries(expected[written], summary[written], case.k_size)


@pytest.mark.parametrize("value", [40, 41, -2])
def test_more_summaries_than_tokens_are_refused(value: int) -> None:
    case = OpsPass(SEQUENCES)
    case.summarised[1] = value
    tensors, summary = inputs_of(case)
    message = rf"KeySummary: summarised_lens\[1\] is {value}, expected -1 or less than the 40 tokens"
    with pytest.raises(ValueError, match=message):
        evaluate("KeySummary", tensors, sizes(case))
    tensors["summarised_lens"] = ov.Tensor(case.summarised[:2])
    with pytest.raises(ValueError, match="summarised_lens holds 2 values, expected 6: one per sequence"):
        evaluate("KeySummary", tensors, sizes(case))
    assert (summary == UNTOUCHED).all()


def test_summary_of_another_shape_is_refused() -> None:
    case = OpsPass(SEQUENCES)
    tensors, _ = inputs_of(case)
    tensors["key_summary"] = ov.Tensor(np.zeros((1, case.kv_heads, summary_bytes(case.k_size)), np.uint8))
    with pytest.raises(ValueError, match=r"KeySummary: key_summary holds .* expected \[blocks of key_cache"):
        evaluate("KeySummary", tensors, sizes(case))


def test_summary_of_another_type_is_refused() -> None:
    case = OpsPass(SEQUENCES)
    tensors, summary = inputs_of(case)
    tensors["key_summary"] = ov.Tensor(np.zeros(summary.shape, np.float16))
    parameters = [ov.op.Parameter(ov.Type.dynamic, t.shape) for t in tensors.values()]
    node = loader.create("KeySummary", parameters, sizes(case))
    with pytest.raises((ValueError, RuntimeError), match="element type f16, is not representable"):
        node.evaluate([ov.Tensor(ov.Type.i32, ov.Shape([1]))], list(tensors.values()))
