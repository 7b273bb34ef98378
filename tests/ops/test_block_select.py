from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from ops.passes import OpsPass, compile_op, evaluate, infer

from ovspec_ops.block_select import block_select
from ovspec_ops.block_select.reference import select

SEQUENCES = [(700, 5, True), (50, 40, False), (31, 1, True), (2000, 3, True), (0, 4, True), (96, 1, True)]


def tensors_of(case: OpsPass, summary: NDArray[np.float32], budgets: list[int]) -> dict[str, ov.Tensor]:
    return {
        "query": case.tensor("query"),
        "key_summary": ov.Tensor(summary),
        "summary_token": ov.Tensor(np.zeros(1, np.int32)),
        "subsequence_begins": case.tensor("subsequence_begins"),
        "verify_past_lens": case.tensor("verify_past_lens"),
        "verify_block_indices": case.tensor("verify_block_indices"),
        "verify_block_indices_begins": case.tensor("verify_block_indices_begins"),
        "verify_budgets": ov.Tensor(np.array(budgets, np.int32)),
    }


def summary_for(case: OpsPass, seed: int = 1) -> NDArray[np.float32]:
    """Small integers, so that scores are exact in f32 and ties are real."""
    rng = np.random.default_rng(seed)
    case.inputs["query"] = np.rint(case.inputs["query"] * 2).astype(np.float32)
    shape = (len(case.inputs["key_cache"]), case.kv_heads, case.k_size)
    return rng.integers(-2, 3, shape).astype(np.float32)


def sizes(case: OpsPass) -> dict[str, Any]:
    return {"kv_heads": case.kv_heads, "k_size": case.k_size}


def reference(case: OpsPass, summary: NDArray[np.float32], budgets: list[int]) -> list[NDArray[np.int32]]:
    names = ("subsequence_begins", "verify_past_lens", "verify_block_indices", "verify_block_indices_begins")
    tables = [case.inputs[name] for name in names]
    out = block_select(
        case.inputs["query"], summary, *[*tables, np.array(budgets, np.int32)],
        kv_heads=case.kv_heads, k_size=case.k_size,
    )  # fmt: skip
    return list(out)


@pytest.mark.parametrize("k_size", [8, 24, 40, 128])
@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("budget", [1, 2, 5, 17, 62, 63, 64, -1])
def test_selection_matches_the_reference(isa: str, k_size: int, group: int, budget: int) -> None:
    case = OpsPass(SEQUENCES, kv_heads=3, group=group, k_size=k_size, v_size=8)
    summary = summary_for(case)
    budgets = [budget, 3, budget, budget, budget, 2]
    got = evaluate("BlockSelect", tensors_of(case, summary, budgets), sizes(case))
    for name, expected, array in zip(
        ("blocks", "counts"), reference(case, summary, budgets), got, strict=True
    ):
        assert np.array_equal(expected, array), name


def test_ties_keep_the_lower_block(isa: str) -> None:
    case = OpsPass([(600, 2, True)], kv_heads=1)
    summary = np.ones((len(case.inputs["key_cache"]), 1, case.k_size), np.float32)
    blocks, counts = evaluate("BlockSelect", tensors_of(case, summary, [6]), sizes(case))
    assert counts.tolist() == [[6]]
    assert blocks[0, :7].tolist() == [0, 1, 2, 3, 4, 18, -1]


def test_unwritten_summaries_rank_last(isa: str) -> None:
    case = OpsPass([(600, 2, True)], kv_heads=1)
    summary = summary_for(case)
    table = case.inputs["verify_block_indices"]
    summary[table[[3, 9]]] = np.nan
    blocks, counts = evaluate("BlockSelect", tensors_of(case, summary, [17]), sizes(case))
    assert counts.tolist() == [[17]]
    assert blocks[0, :17].tolist() == [b for b in range(19) if b not in (3, 9)]


def test_last_context_block_is_kept_when_the_rows_start_a_new_one(isa: str) -> None:
    case = OpsPass([(640, 2, True)], kv_heads=1)
    summary = summary_for(case)
    summary[case.inputs["verify_block_indices"][19]] = -1e6 * np.sign(case.inputs["query"][0, : case.k_size])
    blocks, _ = evaluate("BlockSelect", tensors_of(case, summary, [3]), sizes(case))
    assert blocks[0, :3].tolist() == [0, 19, 20]


def test_compiled_graph_matches_with_any_number_of_threads() -> None:
    case = OpsPass(SEQUENCES, kv_heads=4, k_size=40)
    summary, budgets = summary_for(case), [9, 4, -1, 20, 1, 2]
    tensors = tensors_of(case, summary, budgets)
    for threads in (1, 2):
        got = infer(compile_op("BlockSelect", tensors, sizes(case), INFERENCE_NUM_THREADS=threads), tensors)
        for expected, array in zip(reference(case, summary, budgets), got, strict=True):
            assert np.array_equal(expected, array)


def test_pass_without_verification_gives_minus_one() -> None:
    case = OpsPass([(0, 40, False), (3, 2, False)])
    summary = summary_for(case)
    tensors = tensors_of(case, summary, [-1, 5])
    blocks, counts = infer(compile_op("BlockSelect", tensors, sizes(case)), tensors)
    assert blocks.shape == (case.kv_heads, 0)
    assert (counts == -1).all()


@pytest.mark.parametrize("budget", [0, -2])
def test_bad_budget_is_refused(budget: int) -> None:
    case = OpsPass([(70, 2, True)])
    with pytest.raises(ValueError, match=rf"BlockSelect: verify_budgets\[0\] is {budget}, expected -1"):
        evaluate("BlockSelect", tensors_of(case, summary_for(case), [budget]), sizes(case))


def test_budgets_of_another_number_are_refused() -> None:
    case = OpsPass([(70, 2, True)])
    with pytest.raises(ValueError, match=r"BlockSelect: verify_budgets holds 2 values, expected 1"):
        evaluate("BlockSelect", tensors_of(case, summary_for(case), [1, 2]), sizes(case))


def test_table_beyond_the_summary_is_refused() -> None:
    case = OpsPass([(70, 2, True)])
    summary = summary_for(case)[:1]
    with pytest.raises(
        ValueError, match=r"BlockSelect: verify_block_indices\[\d\] is \d, expected a block id"
    ):
        evaluate("BlockSelect", tensors_of(case, summary, [2]), sizes(case))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=40),
    st.integers(0, 31),
    st.integers(1, 64),
    st.integers(1, 45),
)
def test_rule_of_the_reference(scores: list[int], offset: int, rows: int, budget: int) -> None:
    """The reference itself, against the rule as the paper words it."""
    past = (len(scores) - 1) * 32 + offset
    blocks = (past + rows - 1) // 32 + 1
    values = np.array([*scores, *[9] * (blocks - len(scores))], np.float64)
    kept = select(values, past, rows, budget)
    mandatory = {0, max(past - 1, 0) // 32, *range(past // 32, blocks)}
    assert kept == sorted(set(kept))
    assert mandatory <= set(kept)
    assert len(kept) == max(len(mandatory), min(budget, blocks))
    left = set(range(blocks)) - set(kept)
    for dropped in left:
        for chosen in set(kept) - mandatory:
            assert (values[chosen], -chosen) > (values[dropped], -dropped)
