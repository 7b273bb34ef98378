from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import openvino as ov
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from ops.passes import OpsPass, compile_op, evaluate, infer
from ops.properties import examples

from ovspec_ops.block_select.reference import block_select, mass_scores, part_counts, part_scores, select
from ovspec_ops.key_summary.reference import PARTS, summarise

SEQUENCES = [(700, 5, True), (50, 40, False), (31, 1, True), (2000, 3, True), (0, 4, True), (96, 1, True)]
# Of few and of many blocks; drafts, and pieces of a prompt.
SEQUENCE = st.tuples(
    st.integers(0, 200) | st.sampled_from([640, 700, 1128, 2000]),
    st.integers(1, 8) | st.sampled_from([40, 64, 65, 128]),
    st.sampled_from([True, True, True, False]),
)
BUDGET = st.sampled_from([-1, 1, 2, 3, 9, 17, 62, 63, 64, 64, 64])
COVERAGE = st.sampled_from([1.0, 1.0, 0.8, 0.8, 0.5, 1e-6, 0.999])


@dataclass
class Selection:
    """BlockSelect's inputs beside those of the pass; `keys` are `[blocks, heads, 32, size]`."""

    case: OpsPass
    budgets: list[int]
    coverage: list[float] | None = None
    rule: str = "mass"
    sink_blocks: int = 1
    local_blocks: int = 1
    scale: float = 0.3
    keys: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    buffer: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))

    def __post_init__(self) -> None:
        case, rng = self.case, np.random.default_rng(1)
        shape = (len(case.inputs["key_cache"]), case.kv_heads, 32, case.k_size)
        self.keys = rng.standard_normal(shape).astype(np.float32)
        self.summarise()

    def summarise(self) -> None:
        """Make `buffer` of `keys`."""
        self.buffer = np.stack([summarise(block, 32, self.case.k_size) for block in self.keys])

    @property
    def inputs(self) -> dict[str, NDArray[Any]]:
        return {
            "query": self.case.inputs["query"],
            "key_summary": self.buffer,
            "summary_token": np.zeros(1, np.int32),
            "verify_tables": self.case.tables,
            "verify_budgets": np.array(self.budgets, np.int32),
            "verify_coverage": np.array(self.coverage or [1.0] * len(self.budgets), np.float32),
        }

    @property
    def tensors(self) -> dict[str, ov.Tensor]:
        return {name: ov.Tensor(array, shared_memory=True) for name, array in self.inputs.items()}

    @property
    def attributes(self) -> dict[str, Any]:
        names = ("rule", "sink_blocks", "local_blocks", "scale")
        sizes = {"kv_heads": self.case.kv_heads, "k_size": self.case.k_size}
        return sizes | {name: getattr(self, name) for name in names}

    def run(self) -> list[NDArray[np.int32]]:
        return evaluate("BlockSelect", self.tensors, self.attributes)

    def reference(self) -> list[NDArray[np.int32]]:
        inputs = self.inputs
        del inputs["summary_token"]
        return [*block_select(*inputs.values(), **self.attributes)]

    def check(self) -> list[NDArray[np.int32]]:
        """Outputs, which are those of the reference."""
        got = self.run()
        for name, want, array in zip(("blocks", "counts"), self.reference(), got, strict=True):
            np.testing.assert_array_equal(array, want, err_msg=name)
        return got


@pytest.mark.parametrize("rule", ["mass", "paper"])
@examples(10)
@given(
    sequences=st.lists(SEQUENCE, min_size=1, max_size=3),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 5),
    k_size=st.integers(1, 9).map(lambda eighths: 8 * eighths) | st.sampled_from([128, 256]),
    limits=st.lists(st.tuples(BUDGET, COVERAGE), min_size=3, max_size=3),
    sink_blocks=st.sampled_from([1, 1, 2, 30]),
    local_blocks=st.sampled_from([1, 1, 3, 40]),
)
@example(
    sequences=[(700, 5, True), (31, 1, True), (2000, 3, True)],
    kv_heads=3,
    group=2,
    k_size=40,
    limits=[(64, 0.8)] * 3,
    sink_blocks=2,
    local_blocks=3,
)  # lanes behind the last query count for nothing
def test_selection_matches_the_reference(
    isa: str,
    rule: str,
    sequences: list[tuple[int, int, bool]],
    kv_heads: int,
    group: int,
    k_size: int,
    limits: list[tuple[int, float]],
    sink_blocks: int,
    local_blocks: int,
) -> None:
    case = OpsPass(sequences, kv_heads, group, k_size, v_size=8)
    budgets, coverage = map(list, zip(*limits[: len(sequences)], strict=True))
    Selection(case, budgets, coverage, rule, sink_blocks, local_blocks).check()


def looking(rows: int, at: dict[int, tuple[int, float]], budget: int, rule: str = "mass") -> Selection:
    """Rows behind 640 tokens, all heads alike; block b holds keys that row `at[b][0]` has so large a product
    with."""
    selection = Selection(OpsPass([(640, rows, True)], kv_heads=1, group=1, k_size=80), [budget], None, rule)
    selection.scale = 1.0
    query = selection.case.inputs["query"]
    query[...], selection.keys[...] = 0, 0
    query[np.arange(rows), np.arange(rows) % 80] = 1
    table = selection.case.inputs["verify_block_indices"]
    for block, (row, product) in at.items():
        selection.keys[table[block], :, :, row % 80] = product
    selection.summarise()
    return selection


@pytest.mark.parametrize(("rule", "kept"), [("mass", [0, 5, 19, 20]), ("paper", [0, 11, 19, 20])])
def test_all_rows_choose_or_the_first_alone(isa: str, rule: str, kept: list[int]) -> None:
    selection = looking(3, {5: (2, 9.0), 11: (0, 3.0)}, 4, rule)
    assert selection.check()[0][0, :4].tolist() == kept


@pytest.mark.parametrize("rows", [64, 65])
def test_all_rows_of_a_prompt_choose_by_the_papers_rule_too(isa: str, rows: int) -> None:
    blocks, _ = looking(rows, {5: (0, 3.0), 11: (1, 9.0)}, 6, "paper").check()
    assert {5, 11}.intersection(blocks[0]) == {5 if rows == 64 else 11}


def test_a_part_that_one_row_looks_at_counts_more_than_a_mean(isa: str) -> None:
    """Eight tokens of a block have a large product, the others a small one: the mean key hides them."""
    selection = looking(1, {11: (0, 2.0)}, 4)
    table = selection.case.inputs["verify_block_indices"]
    selection.keys[table[5], :, :8, 0], selection.keys[table[5], :, 8:, 0] = 5.0, -3.0
    selection.summarise()
    assert selection.check()[0][0, :4].tolist() == [0, 5, 19, 20]
    selection.rule = "paper"
    assert selection.check()[0][0, :4].tolist() == [0, 11, 19, 20]


@pytest.mark.parametrize("rule", ["mass", "paper"])
def test_ties_keep_the_lower_block(isa: str, rule: str) -> None:
    selection = Selection(OpsPass([(608, 2, True)], kv_heads=1), [6], None, rule)
    selection.keys[...] = 1
    selection.summarise()
    blocks, counts = selection.check()
    assert counts.tolist() == [[6]]
    assert blocks[0, :7].tolist() == [0, 1, 2, 3, 18, 19, -1]


@pytest.mark.parametrize("rule", ["mass", "paper"])
def test_summaries_that_are_no_numbers_rank_last(isa: str, rule: str) -> None:
    selection = Selection(OpsPass([(600, 2, True)], kv_heads=1), [17], None, rule)
    table = selection.case.inputs["verify_block_indices"]
    scales = selection.buffer[..., : PARTS * 4].view(np.float32)
    scales[table[[3, 9]]] = np.nan, np.nan, np.nan, np.nan
    blocks, counts = selection.check()
    assert counts.tolist() == [[17]]
    assert blocks[0, :17].tolist() == [b for b in range(19) if b not in (3, 9)]


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_query_that_is_no_number_leaves_the_others_their_choice(isa: str, poison: float) -> None:
    selection = looking(3, {5: (1, 9.0)}, 4)
    selection.case.inputs["query"][0, 3] = poison
    assert selection.run()[0][0, :4].tolist() == [0, 5, 19, 20]


def test_nothing_behind_the_past_is_scored(isa: str) -> None:
    """Poisoned summaries of the blocks that the rows write, and of blocks of nobody."""
    selection = Selection(OpsPass([(640, 40, True)], kv_heads=2), [9])
    expected = selection.check()[0]
    table = selection.case.inputs["verify_block_indices"]
    others = np.setdiff1d(np.arange(len(selection.buffer)), table[:20])
    selection.buffer[others] = 0xFF
    np.testing.assert_array_equal(selection.run()[0], expected)


def test_last_context_block_is_kept_when_the_rows_start_a_new_one(isa: str) -> None:
    selection = looking(2, {7: (0, 5.0), 19: (0, -50.0)}, 3)
    assert selection.check()[0][0, :3].tolist() == [0, 19, 20]


def test_coverage_stops_at_its_share(isa: str) -> None:
    """Masses of one size: 20 blocks, of which block 0 and the last hold a tenth."""
    case = OpsPass([(640, 2, True)], kv_heads=2)
    for coverage, kept in (
        (0.05, 3),
        (0.0999, 3),
        (0.499, 11),
        (0.51, 12),
        (0.949, 20),
        (0.96, 21),
        (1.0, -1),
    ):
        selection = Selection(case, [21], [coverage])
        selection.keys[...] = 0
        selection.summarise()
        _, counts = selection.check()
        assert counts.tolist() == [[kept], [kept]], coverage


def test_compiled_graph_matches_with_any_number_of_threads() -> None:
    case = OpsPass(SEQUENCES, kv_heads=4, k_size=40)
    for threads in (1, 2):
        selection = Selection(case, [9, 4, -1, 20, 1, 2], [1, 1, 1, 0.9, 1, 1])
        compiled = compile_op(
            "BlockSelect", selection.tensors, selection.attributes, INFERENCE_NUM_THREADS=threads
        )
        got = infer(compiled, selection.tensors)
        for want, array in zip(selection.reference(), got, strict=True):
            np.testing.assert_array_equal(array, want)


def test_pass_without_verification_gives_minus_one() -> None:
    selection = Selection(OpsPass([(0, 40, False), (3, 2, False)]), [-1, 5])
    tensors = selection.tensors
    blocks, counts = infer(compile_op("BlockSelect", tensors, selection.attributes), tensors)
    assert blocks.shape == (selection.case.kv_heads, 0)
    assert (counts == -1).all()


def test_where_nobody_selects_there_are_no_lists() -> None:
    selection = Selection(OpsPass([(640, 2, True), (70, 1, True)]), [-1, -1])
    for got, want in zip(selection.run(), selection.reference(), strict=True):
        assert got.shape == want.shape == (selection.case.kv_heads, 0)


@pytest.mark.parametrize("budgets", [[], [-1], [-1] * 3])
def test_budgets_are_one_per_sequence_also_where_nobody_selects(budgets: list[int]) -> None:
    selection = Selection(OpsPass([(640, 2, True), (70, 1, True)]), budgets, [1.0, 1.0])
    with pytest.raises(ValueError, match=f"verify_budgets holds {len(budgets)} values, expected 2"):
        selection.run()


@pytest.mark.parametrize("budget", [0, -2])
def test_bad_budget_is_refused(budget: int) -> None:
    with pytest.raises(ValueError, match=rf"BlockSelect: verify_budgets\[0\] is {budget}, expected -1"):
        Selection(OpsPass([(70, 2, True)]), [budget]).run()


@pytest.mark.parametrize("coverage", [0.0, -0.5, 1.01, float("nan")])
def test_bad_coverage_is_refused(coverage: float) -> None:
    with pytest.raises(ValueError, match=r"BlockSelect: verify_coverage\[0\] is .* a share above 0, up to 1"):
        Selection(OpsPass([(70, 2, True)]), [2], [coverage]).run()


@pytest.mark.parametrize("name", ["verify_budgets", "verify_coverage"])
def test_values_of_another_number_are_refused(name: str) -> None:
    selection = Selection(OpsPass([(70, 2, True)]), [1])
    tensors = selection.tensors
    tensors[name] = ov.Tensor(np.ones(2, tensors[name].data.dtype))
    with pytest.raises(ValueError, match=rf"BlockSelect: {name} holds 2 values, expected 1"):
        evaluate("BlockSelect", tensors, selection.attributes)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rule", "best", "attribute rule is 'best', expected one of mass, paper"),
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


@examples(200)
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
    past = (len(scores) - 1) * 32 + offset + 1
    blocks = (past + rows - 1) // 32 + 1
    values = np.array(scores, np.float64) + 4
    kept = select(values, past, rows, budget, coverage=coverage, sink_blocks=sinks, local_blocks=local)
    last = max(past - 1, 0) // 32
    mandatory = {*range(min(sinks, blocks)), *range(max(0, last - local + 1), blocks)}
    assert kept == sorted(set(kept))
    assert mandatory <= set(kept)
    chosen = sorted(set(kept) - mandatory, key=lambda b: (values[b], -b))
    held = sum(values[b] for b in kept if b < len(values))
    enough = held >= coverage * values.sum() - 1e-9
    assert len(kept) == max(len(mandatory), min(budget, blocks)) or (coverage < 1 and enough)
    if coverage < 1 and chosen:
        assert held - values[chosen[0]] < coverage * values.sum(), "one less is too little"
    for dropped in set(range(blocks)) - set(kept):
        for one in chosen:
            assert (values[one], -one) > (values[dropped], -dropped)


def test_mass_is_the_share_of_attention_of_equal_keys() -> None:
    """Where all keys of a part are one, of 16 numbers, the estimate is what attention gives the block."""
    rng = np.random.default_rng(3)
    parts = rng.integers(0, 16, (7, 1, PARTS, 1, 24)).astype(np.float32)
    parts[..., :2] = 0, 15
    parts = parts / 8 - 1
    keys = np.broadcast_to(parts, (7, 1, PARTS, 8, 24)).reshape(7, 1, 32, 24)
    query = rng.standard_normal((5, 24))
    past = 6 * 32 + 13
    summaries = np.stack([summarise(block, 32, 24) for block in keys])[:, 0]
    got = mass_scores(part_scores(query, summaries, 0.5), part_counts(past, 7))
    logits = 0.5 * query @ keys.reshape(-1, 24)[:past].T.astype(np.float64)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    want = np.add.reduceat(weights, np.arange(0, past, 32), axis=1).sum(axis=0)
    np.testing.assert_allclose(got, want, rtol=1e-9)
