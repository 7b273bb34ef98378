from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
import pytest
from ops.passes import OpsPass, attention_tensors, compile_op, evaluate, infer, parameters

import ovspec_ops

SEQUENCES = [(70, 3, True), (5, 2, False), (33, 2, True)]
Change = Callable[[dict[str, Any]], None]


def put(name: str, index: Any, value: int) -> Change:
    def change(inputs: dict[str, Any]) -> None:
        inputs[name][index] = value

    return change


def replace(name: str, value: Any) -> Change:
    def change(inputs: dict[str, Any]) -> None:
        inputs[name] = value

    return change


BAD_INPUTS = {
    "table too short": (
        put("verify_past_lens", 0, 130),
        r"holds 4 blocks for sequence 0, expected at least 5 for 130 cached tokens and 3 rows",
    ),
    "block id too large": (
        put("verify_block_indices", 1, 99),
        r"verify_block_indices\[1\] is 99, expected a block id below the cache's \d+ blocks",
    ),
    "block id negative": (put("verify_block_indices", 0, -1), r"verify_block_indices\[0\] is -1"),
    "past below -1": (put("verify_past_lens", 0, -2), r"verify_past_lens\[0\] is -2, expected .* or -1"),
    "begins descending": (
        put("subsequence_begins", 1, 6),
        r"subsequence_begins\[2\] is 5, expected ascending",
    ),
    "begins too short": (
        put("subsequence_begins", 3, 6),
        r"subsequence_begins covers 0 to 6, expected 0 to the 7",
    ),
    "begins beyond": (put("subsequence_begins", 3, 8), r"subsequence_begins\[3\] is 8"),
    "table begins beyond": (
        put("verify_block_indices_begins", 3, 99),
        r"verify_block_indices_begins\[3\] is 99",
    ),
    "no rows": (put("subsequence_begins", 1, 0), r"sequence 0 has no row, but verify_past_lens\[0\] is 70"),
    "attention of another width": (
        replace("attention", np.zeros((7, 8), np.float32)),
        r"attention .*expected \[",
    ),
    "selected block out of range": (
        put("selected_blocks", (1, 0), 3),
        r"selected_blocks\[1, 0\] is 3, expected a logical block below the 3 of sequence 0",
    ),
    "selected block negative": (put("selected_blocks", (0, 0), -1), r"selected_blocks\[0, 0\] is -1"),
    "selected blocks not ascending": (
        put("selected_blocks", (0, 1), 0),
        r"expected ascending logical blocks",
    ),
    "own block missing": (
        put("selected_counts", (1, 0), 2),
        r"selected_blocks of KV head 1 lacks a block of sequence 0's own rows, expected blocks 2 to 2",
    ),
    "count too large": (put("selected_counts", (0, 2), 9), r"selected_counts\[0, 2\] is 9, expected -1"),
    "count zero": (put("selected_counts", (0, 0), 0), r"selected_counts\[0, 0\] is 0, expected -1"),
    "counts of another shape": (
        replace("selected_counts", np.full((2, 2), -1, np.int32)),
        r"selected_counts holds 4 values, expected \[2, 3\]",
    ),
    "blocks of another shape": (
        replace("selected_blocks", np.zeros((2, 1), np.int32)),
        r"selected_blocks holds 2 values, expected \[2, \d+\]",
    ),
    "sinks of another size": (
        replace("sinks", np.zeros(3, np.float32)),
        r"sinks holds 3 values, expected 4, or none for no sink",
    ),
    "parents of another size": (
        replace("verify_parents", np.zeros(3, np.int32)),
        r"verify_parents holds 3 values, expected 7, or none for a chain",
    ),
    "parent that is its own child": (
        put("verify_parents", 6, 1),
        r"verify_parents\[6\] is 1, expected a row before row 1 of sequence 2, or -1 for the past",
    ),
    "parent below the past": (put("verify_parents", 0, -2), r"verify_parents\[0\] is -2, expected a row"),
}


def run(case: OpsPass) -> None:
    evaluate("VerifyAttention", attention_tensors(case), case.attributes)


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input_is_refused(name: str) -> None:
    case = OpsPass(SEQUENCES, keep=1.0, sinks=True, tree=True)
    run(case)
    change, message = BAD_INPUTS[name]
    change(case.inputs)
    with pytest.raises(ValueError, match=message) as caught:
        run(case)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("VerifyAttention: ")


def test_a_tree_of_more_than_64_rows_is_refused() -> None:
    case = OpsPass([(10, 65, True)])
    case.inputs["verify_parents"] = np.arange(-1, 64, dtype=np.int32)
    run(case)  # a chain
    case.inputs["verify_parents"][9] = 3
    with pytest.raises(ValueError, match=r"sequence 0 is a tree of 65 rows, expected at most 64; make it"):
        run(case)


def test_error_reaches_the_caller_of_a_compiled_model() -> None:

    case = OpsPass(SEQUENCES)
    tensors = attention_tensors(case)
    compiled = compile_op("VerifyAttention", tensors, case.attributes)
    infer(compiled, tensors)
    case.inputs["verify_block_indices"][0] = 99
    with pytest.raises(RuntimeError, match=r"VerifyAttention: verify_block_indices\[0\] is 99"):
        infer(compiled, attention_tensors(case))


BAD_ATTRIBUTES = {
    "kv_heads": (0, r"attribute kv_heads is 0, expected 1 to 65536"),
    "k_size": (12, r"attribute k_size is 12, expected a multiple of 8"),
    "v_size": (2048, r"attribute v_size is 2048, expected a multiple of 8 from 8 to 1024"),
    "scale": (float("nan"), r"attribute scale is -?nan, expected a finite number"),
    "sliding_window": (-1, r"attribute sliding_window is -1"),
    "past_window": (2**31, r"attribute past_window is 2147483648, expected 0 \(none\) or a length"),
}


def create(tensors: dict[str, ov.Tensor], attributes: dict[str, Any], dynamic: bool = True) -> ov.Node:
    return ovspec_ops.create("VerifyAttention", parameters(tensors, dynamic), attributes)


@pytest.mark.parametrize("name", BAD_ATTRIBUTES)
def test_bad_attribute_is_refused(name: str) -> None:
    case = OpsPass(SEQUENCES)
    value, message = BAD_ATTRIBUTES[name]
    with pytest.raises(ValueError, match=message):
        create(attention_tensors(case), case.attributes | {name: value})


@pytest.mark.parametrize("other", [{"past_window": 3}, {"causal": False}])
def test_two_rules_for_the_past_are_refused(other: dict[str, Any]) -> None:
    tensors = attention_tensors(OpsPass(SEQUENCES))
    with pytest.raises(
        ValueError, match=r"sliding_window is 5, expected 0 beside a past_window, or where causal"
    ):
        create(tensors, OpsPass(SEQUENCES, window=5, **other).attributes)


def test_a_tree_whose_rows_see_all_rows_is_refused() -> None:
    with pytest.raises(
        ValueError, match="sequence 0 is a tree, expected a chain where attribute causal is false"
    ):
        run(OpsPass(SEQUENCES, tree=True, causal=False))


def test_missing_scale_is_refused() -> None:
    case = OpsPass(SEQUENCES)
    attributes = {name: value for name, value in case.attributes.items() if name != "scale"}
    with pytest.raises(ValueError, match=r"attribute scale is"):
        create(attention_tensors(case), attributes)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("query", np.zeros((7, 64), np.float16), r"query \(input 0\) is of type f16, expected f32"),
        ("query", np.zeros((7, 60), np.float32), r"query has rows of 60 values, expected a multiple of"),
        ("key_cache", np.zeros((4, 2, 32, 16), np.int8), r"key_cache \(input 1\) is of type i8, expected"),
        ("key_cache", np.zeros((4, 2, 16, 16), np.float32), r"key_cache .* expected \[blocks, 2, 32, 16\]"),
        ("key_cache", np.zeros((4, 2, 32, 16), np.uint8), r"expected \[blocks, 2, 32, 24\] \(by token\) or"),
        ("value_cache", np.zeros((4, 2, 32, 16), np.float16), r"key_cache is of type f32 and value_cache"),
        ("value_cache", np.zeros((4, 3, 32, 16), np.float32), r"value_cache \(input 2\) is of shape"),
        ("verify_tables", np.zeros(3, np.int64), r"verify_tables \(input 4\) is of type i64"),
        ("selected_blocks", np.zeros(3, np.int32), r"selected_blocks \(input 5\) is of shape \[3\]"),
    ],
    ids=lambda v: v if isinstance(v, str) and " " not in v else "",
)  # fmt: skip
def test_bad_type_or_shape_is_refused(name: str, array: Any, message: str) -> None:
    case = OpsPass(SEQUENCES)
    tensors = attention_tensors(case) | {name: ov.Tensor(array)}
    with pytest.raises(ValueError, match=message):
        create(tensors, case.attributes, dynamic=False)


def test_wrong_number_of_inputs_is_refused() -> None:
    case = OpsPass(SEQUENCES)
    tensors = attention_tensors(case)
    del tensors["sinks"]
    with pytest.raises(ValueError, match=r"VerifyAttention: got 7 inputs, expected 5 or 8"):
        create(tensors, case.attributes)


@pytest.mark.parametrize("values", [[], [3], [-1, 0], [0, -1], [3, 0, 0, 3], [2**31 - 1, 2**31 - 1]])
def test_tables_shorter_than_they_say_are_refused(values: list[int]) -> None:
    case = OpsPass(SEQUENCES)
    tensors = attention_tensors(case) | {"verify_tables": ov.Tensor(np.array(values, np.int32))}
    with pytest.raises(ValueError, match=rf"verify_tables holds {len(values)} values, fewer than the tables"):
        evaluate("VerifyAttention", tensors, case.attributes)


def test_tables_of_different_passes_are_refused() -> None:
    case = OpsPass(SEQUENCES)
    case.inputs["verify_past_lens"] = np.array([70, -1], np.int32)
    with pytest.raises(ValueError, match=r"subsequence_begins holds 4 values, expected 3: one more than"):
        attention_tensors(case)


def test_caches_of_different_types_are_refused() -> None:
    case = OpsPass(SEQUENCES)
    tensors = attention_tensors(case)
    tensors["value_cache"] = ov.Tensor(tensors["value_cache"].data.astype(np.float16))
    message = "key_cache is of type f32 and value_cache of type f16, expected the same type"
    with pytest.raises(ValueError, match=message):
        evaluate("VerifyAttention", tensors, case.attributes)
