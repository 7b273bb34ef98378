from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import openvino as ov
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from ops.passes import OpsPass, compile_op, evaluate, infer
from tiers import by_tier

from ovspec_ops.block_select.reference import block_masses, block_select, select

SEQUENCES = [(700, 5, True), (50, 40, False), (31, 1, True), (2000, 3, True), (0, 4, True), (96, 1, True)]


@dataclass
class Selection:
    """BlockSelect's inputs beside those of the pass, and its attributes.

    `buffer` is the summary; scores of small integers are exact in f32, so that ties are real.
    """

    case: OpsPass
    budgets: list[int]
    coverage: list[float] | None = None
    refresh: list[int] | None = None
    kept: NDArray[np.int32] | None = None
    summary: str = "mean"
    query: str = "last"
    sink_blocks: int = 1
    local_blocks: int = 1
    scale: float = 1.0
    buffer: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))

    def __post_init__(self) -> None:
        case, rng = self.case, np.random.default_rng(1)
        case.inputs["query"] = np.rint(case.inputs["query"] * 2).astype(np.float32)
        rows = 2 if self.summary == "min_max" else 1
        shape = (len(case.inputs["key_cache"]), case.kv_heads, rows, case.k_size)
        values = np.sort(rng.integers(-2, 3, shape), axis=2)  # the minimum comes first
        self.buffer = values.reshape(*shape[:2], -1).astype(np.float32)

    @property
    def inputs(self) -> dict[str, NDArray[Any]]:
        names = (
            "subsequence_begins", "verify_past_lens", "verify_block_indices", "verify_block_indices_begins",
        )  # fmt: skip
        count = len(self.budgets)
        return {
            "query": self.case.inputs["query"],
            "key_summary": self.buffer,
            "summary_token": np.zeros(1, np.int32),
            **{name: self.case.inputs[name] for name in names},
            "verify_budgets": np.array(self.budgets, np.int32),
            "verify_coverage": np.array(self.coverage or [1.0] * count, np.float32),
            "verify_refresh": np.array(self.refresh or [], np.int32),
            "kept_blocks": np.zeros((0, self.case.kv_heads), np.int32) if self.kept is None else self.kept,
        }

    @property
    def tensors(self) -> dict[str, ov.Tensor]:
        return {name: ov.Tensor(array, shared_memory=True) for name, array in self.inputs.items()}

    @property
    def attributes(self) -> dict[str, Any]:
        names = ("summary", "query", "sink_blocks", "local_blocks", "scale")
        sizes = {"kv_heads": self.case.kv_heads, "k_size": self.case.k_size}
        return sizes | {name: getattr(self, name) for name in names}

    def run(self) -> list[NDArray[np.int32]]:
        return evaluate("BlockSelect", self.tensors, self.attributes)

    def reference(self) -> list[NDArray[np.int32]]:
        """The reference's outputs, and what it makes of a copy of `kept`."""
        inputs = self.inputs
        del inputs["summary_token"]
        kept = inputs["kept_blocks"] = inputs["kept_blocks"].copy()
        options = dict(self.attributes)
        options["rows_of_query"] = options.pop("query")
        return [*block_select(*inputs.values(), **options), kept]

    def check(self) -> list[NDArray[np.int32]]:
        """Outputs, which are those of the reference; `kept` is updated."""
        expected = self.reference()
        got = self.run()
        for name, want, array in zip(("blocks", "counts"), expected, got, strict=False):
            np.testing.assert_array_equal(array, want, err_msg=name)
        if self.kept is not None:
            np.testing.assert_array_equal(self.kept, expected[2], err_msg="kept_blocks")
        return got


@pytest.mark.parametrize("k_size", by_tier([8, 24, 40, 128], [24, 128]))
@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("budget", [1, 2, 5, 17, 62, 63, 64, -1])
def test_selection_matches_the_reference(isa: str, k_size: int, group: int, budget: int) -> None:
    case = OpsPass(SEQUENCES, kv_heads=3, group=group, k_size=k_size, v_size=8)
    Selection(case, [budget, 3, budget, budget, budget, 2]).check()


@pytest.mark.parametrize("summary", ["mean", "min_max"])
@pytest.mark.parametrize("query", ["last", "union"])
@pytest.mark.parametrize(
    ("sink_blocks", "local_blocks"), by_tier([(1, 1), (2, 3), (30, 40)], [(2, 3), (30, 40)])
)
@pytest.mark.parametrize(("budget", "coverage"), [(9, 1.0), (64, 0.8), (12, 0.8), (64, 1e-6), (64, 0.999999)])
def test_every_rule_matches_the_reference(
    isa: str, summary: str, query: str, sink_blocks: int, local_blocks: int, budget: int, coverage: float
) -> None:
    case = OpsPass(SEQUENCES, kv_heads=3, group=2, k_size=40, v_size=8)
    selection = Selection(
        case, [budget] * 6, [coverage] * 6, None, None, summary, query, sink_blocks, local_blocks, 0.05
    )
    _, counts = selection.check()
    assert (counts[:, 3] >= 0).all()


@pytest.mark.parametrize("summary", ["mean", "min_max"])
@pytest.mark.parametrize("query", ["last", "union"])
@pytest.mark.parametrize(
    ("budget", "coverage"), by_tier([(9, 1.0), (64, 0.8), (3, 1.0)], [(9, 1.0), (64, 0.8)])
)
def test_pieces_of_a_prompt_match_the_reference(
    isa: str, summary: str, query: str, budget: int, coverage: float
) -> None:
    # Numbers of rows that are powers of 2, so that means are exact and ties are real.
    pieces = [(700, 5, True), (1000, 128, True), (1128, 128, True), (640, 256, True), (31, 64, True)]
    case = OpsPass(pieces, kv_heads=3, group=2, k_size=40, v_size=8)
    selection = Selection(case, [budget] * 5, [coverage] * 5, None, None, summary, query, scale=0.05)
    _, counts = selection.check()
    assert (counts[:, 1] >= 0).all()


@pytest.mark.parametrize("rows", [64, 65])
def test_a_prompt_goes_by_all_its_rows_and_a_draft_by_the_first(isa: str, rows: int) -> None:
    selection = Selection(OpsPass([(640, rows, True)], kv_heads=1, group=1, k_size=8), [0 + 3 + 4])
    selection.case.inputs["query"][...] = 0
    selection.case.inputs["query"][0, 0], selection.case.inputs["query"][1:, 0] = 1, -1
    selection.buffer[...] = 0
    table = selection.case.inputs["verify_block_indices"]
    for block, value in ((5, 1), (11, -1)):
        selection.buffer[table[block], :, 0] = value
    blocks, _ = selection.check()
    assert (5 in blocks[0]) == (rows == 64)
    assert (11 in blocks[0]) == (rows == 65)


def test_ties_keep_the_lower_block(isa: str) -> None:
    selection = Selection(OpsPass([(600, 2, True)], kv_heads=1), [6])
    selection.buffer[...] = 1
    blocks, counts = selection.check()
    assert counts.tolist() == [[6]]
    assert blocks[0, :7].tolist() == [0, 1, 2, 3, 4, 18, -1]


@pytest.mark.parametrize("summary", ["mean", "min_max"])
@pytest.mark.parametrize("query", ["last", "union"])
def test_unwritten_summaries_rank_last(isa: str, summary: str, query: str) -> None:
    selection = Selection(OpsPass([(600, 2, True)], kv_heads=1), [17], None, None, None, summary, query)
    selection.buffer[selection.case.inputs["verify_block_indices"][[3, 9]], :, -1] = np.nan
    blocks, counts = selection.check()
    assert counts.tolist() == [[17]]
    assert blocks[0, :17].tolist() == [b for b in range(19) if b not in (3, 9)]


def test_last_context_block_is_kept_when_the_rows_start_a_new_one(isa: str) -> None:
    selection = Selection(OpsPass([(640, 2, True)], kv_heads=1), [3])
    inputs = selection.case.inputs
    selection.buffer[inputs["verify_block_indices"][19]] = -1e6 * np.sign(inputs["query"][0, :16])
    blocks, _ = selection.check()
    assert blocks[0, :3].tolist() == [0, 19, 20]


def test_union_keeps_a_block_that_only_the_last_row_looks_at(isa: str) -> None:
    selection = Selection(OpsPass([(640, 3, True)], kv_heads=1, group=1), [4], query="union")
    table = selection.case.inputs["verify_block_indices"]
    query = selection.case.inputs["query"]
    query[...] = 0
    query[0, 0], query[2, 1] = 1, 1
    selection.buffer[...] = 0
    selection.buffer[table[5], 0, 1], selection.buffer[table[11], 0, 0] = 2, 1
    assert selection.check()[0][0, :4].tolist() == [0, 5, 19, 20]
    selection.query = "last"
    assert selection.check()[0][0, :4].tolist() == [0, 11, 19, 20]


def test_coverage_stops_at_its_share(isa: str) -> None:
    """Masses of one size: 20 blocks of 32 tokens, of which block 0 and the last hold a tenth."""
    case = OpsPass([(638, 2, True)], kv_heads=2)
    for coverage, kept in ((0.05, 2), (0.0999, 2), (0.5, 10), (0.51, 11), (0.95, 19), (0.96, 20), (1.0, -1)):
        selection = Selection(case, [20], [coverage])
        selection.buffer[...] = 0
        _, counts = selection.check()
        assert counts.tolist() == [[kept], [kept]], coverage


def test_reused_lists_grow_with_the_sequence(isa: str) -> None:
    """Passes of two interleaved sequences; the second one rolls back between its passes."""
    case = OpsPass([(700, 5, True), (900, 40, True)], kv_heads=2, k_size=24)
    table = case.inputs["verify_block_indices"]
    # Left over from other sequences; it must not be used.
    selection = Selection(case, [6, 9], None, [1, 1], np.ones((len(table), 2), np.int32))
    chosen, _ = selection.check()
    begin = case.inputs["verify_block_indices_begins"][1]
    first = [set(chosen[h, begin:].tolist()) - {-1} for h in range(2)]

    def again(past: int, refresh: int) -> list[set[int]]:
        case.inputs["verify_past_lens"][1], selection.refresh = past, [1, refresh]
        selection.buffer[...] = np.random.default_rng(past).integers(-2, 3, selection.buffer.shape)
        blocks, _ = selection.check()
        return [set(blocks[h, begin:].tolist()) - {-1} for h in range(2)]

    assert again(905, 0) == first  # rows 905 .. 944: blocks 28 and 29, kept as those of the rows before
    assert again(880, 0) == [kept - {29} | {27} for kept in first]
    case.inputs["verify_block_indices"][begin + 30] = np.setdiff1d(np.arange(len(selection.buffer)), table)[0]
    assert again(925, 0) == [kept | {27, 30} for kept in first]
    assert again(925, 1) != first


def test_a_list_is_reused_whatever_the_budget_and_not_when_dense(isa: str) -> None:
    case = OpsPass([(700, 5, True)], kv_heads=1)
    selection = Selection(
        case, [6], [1.0], [1], np.zeros((len(case.inputs["verify_block_indices"]), 1), np.int32)
    )
    chosen = selection.check()[0]
    selection.refresh, selection.budgets = [0], [3]
    np.testing.assert_array_equal(selection.check()[0], chosen)
    selection.budgets = [-1]
    assert selection.check()[1].tolist() == [[-1]]


def test_compiled_graph_matches_with_any_number_of_threads() -> None:
    case = OpsPass(SEQUENCES, kv_heads=4, k_size=40)
    for threads in (1, 2):
        kept = np.zeros((len(case.inputs["verify_block_indices"]), 4), np.int32)
        selection = Selection(
            case, [9, 4, -1, 20, 1, 2], [1, 1, 1, 0.9, 1, 1], [1, 1, 1, 1, 0, 1], kept,
            "min_max", "union", scale=0.1,
        )  # fmt: skip
        expected = selection.reference()
        compiled = compile_op(
            "BlockSelect", selection.tensors, selection.attributes, INFERENCE_NUM_THREADS=threads
        )
        got = infer(compiled, selection.tensors)
        for want, array in zip(expected, [*got, kept], strict=True):
            np.testing.assert_array_equal(array, want)
        assert kept.any()


def test_pass_without_verification_gives_minus_one() -> None:
    selection = Selection(OpsPass([(0, 40, False), (3, 2, False)]), [-1, 5])
    tensors = selection.tensors
    blocks, counts = infer(compile_op("BlockSelect", tensors, selection.attributes), tensors)
    assert blocks.shape == (selection.case.kv_heads, 0)
    assert (counts == -1).all()


@pytest.mark.parametrize("budget", [0, -2])
def test_bad_budget_is_refused(budget: int) -> None:
    with pytest.raises(ValueError, match=rf"BlockSelect: verify_budgets\[0\] is {budget}, expected -1"):
        Selection(OpsPass([(70, 2, True)]), [budget]).run()


@pytest.mark.parametrize("coverage", [0.0, -0.5, 1.01, float("nan")])
def test_bad_coverage_is_refused(coverage: float) -> None:
    with pytest.raises(ValueError, match=r"BlockSelect: verify_coverage\[0\] is .* a share above 0, up to 1"):
        Selection(OpsPass([(70, 2, True)]), [2], [coverage]).run()


@pytest.mark.parametrize("name", ["verify_budgets", "verify_coverage", "verify_refresh"])
def test_values_of_another_number_are_refused(name: str) -> None:
    selection = Selection(OpsPass([(70, 2, True)]), [1], refresh=[1])
    tensors = selection.tensors
    tensors[name] = ov.Tensor(np.ones(2, tensors[name].data.dtype))
    with pytest.raises(ValueError, match=rf"BlockSelect: {name} holds 2 values, expected 1"):
        evaluate("BlockSelect", tensors, selection.attributes)


def test_reuse_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"BlockSelect: verify_refresh\[0\] is 0 \(reuse\), but kept_blocks"):
        Selection(OpsPass([(70, 2, True)]), [1], refresh=[0]).run()


def test_lists_of_another_cache_are_refused() -> None:
    selection = Selection(OpsPass([(70, 2, True)]), [1], refresh=[1], kept=np.zeros((2, 2), np.int32))
    with pytest.raises(ValueError, match=r"BlockSelect: kept_blocks holds 4 values, expected none"):
        selection.run()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("summary", "median", "attribute summary is 'median'"),
        ("query", "first", "attribute query is 'first', expected one of last, union"),
        ("sink_blocks", 0, "attribute sink_blocks is 0, expected at least 1"),
        ("kv_heads", 2**61, r"attribute kv_heads is \d+, expected 1 to 65536"),
        ("local_blocks", -1, "attribute local_blocks is -1, expected at least 1"),
        ("scale", 0.0, "attribute scale is 0.0"),
        ("scale", float("nan"), "attribute scale is nan"),
    ],
)
def test_bad_attributes_are_refused(name: str, value: Any, message: str) -> None:
    selection = Selection(OpsPass([(70, 2, True)]), [1])
    with pytest.raises(ValueError, match=f"BlockSelect: {message}"):
        evaluate("BlockSelect", selection.tensors, selection.attributes | {name: value})


def test_table_beyond_the_summary_is_refused() -> None:
    selection = Selection(OpsPass([(70, 2, True)]), [2])
    selection.buffer = selection.buffer[:1]
    with pytest.raises(
        ValueError, match=r"BlockSelect: verify_block_indices\[\d\] is \d, expected a block id"
    ):
        selection.run()


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=40),
    st.integers(0, 31),
    st.integers(1, 64),
    st.integers(1, 45),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([0.01, 0.3, 0.9, 1.0]),
)
def test_rule_of_the_reference(
    scores: list[int], offset: int, rows: int, budget: int, sinks: int, local: int, coverage: float
) -> None:
    """The reference itself, against the rule as the papers word it."""
    past = (len(scores) - 1) * 32 + offset
    blocks = (past + rows - 1) // 32 + 1
    values = np.array([*scores, *[9] * (blocks - len(scores))], np.float64)
    kept = select(values, past, rows, budget, coverage=coverage, sink_blocks=sinks, local_blocks=local)
    last = max(past - 1, 0) // 32
    mandatory = {*range(min(sinks, blocks)), *range(max(0, last - local + 1), blocks)}
    assert kept == sorted(set(kept))
    assert mandatory <= set(kept)
    masses = block_masses(values, past + rows, 1.0)
    chosen = sorted(set(kept) - mandatory, key=lambda b: (values[b], -b))
    enough = masses[kept].sum() >= coverage * masses.sum() - 1e-9
    assert len(kept) == max(len(mandatory), min(budget, blocks)) or (coverage < 1 and enough)
    if coverage < 1 and chosen:
        assert masses[kept].sum() - masses[chosen[0]] < coverage * masses.sum(), "one less is too little"
    for dropped in set(range(blocks)) - set(kept):
        for one in chosen:
            assert (values[one], -one) > (values[dropped], -dropped)
