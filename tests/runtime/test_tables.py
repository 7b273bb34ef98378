"""The inputs of a pass: few rows of one sequence take a shorter way to the same arrays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import openvino as ov
import pytest

from ovspec.runtime.cache import CachedSequence
from ovspec.runtime.pass_inputs import PassInputs
from ovspec.runtime.tables import FEATURES, Rows, build_tables
from ovspec_transforms import QQ_BIAS, QQ_BIAS_BEGINS, SLOT_MAPPING, VERIFY_TABLES

OF_NATIVE = {VERIFY_TABLES, SLOT_MAPPING, "written_begins"}
OF_SELECTION = {
    "verify_budgets",
    "verify_past_lens",
    "verify_block_indices",
    "verify_block_indices_begins",
}
OF_STOCK = {QQ_BIAS, QQ_BIAS_BEGINS}
FEW = {"sampled": 2, "states": 1, "text_length": 400}


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(
    "options", [{}, FEW, {"budget": 3}, {"offset": 40}, {"is_prompt": True, "budget": 3}]
)
@pytest.mark.parametrize("new", [1, 5, 64])
@pytest.mark.parametrize("past", [0, 31, 32, 63, 700])
def test_one_chain_alone_has_the_inputs_that_it_has_among_others(
    past: int, new: int, options: dict[str, Any], native: bool
) -> None:
    """Alone, each of its inputs is what the way of all passes makes."""
    options = {**options, "sampled": min(new, options.get("sampled", 1))}
    table = np.random.default_rng(0).permutation(99).astype(np.int32)
    features = np.ones((new, 1, 8), np.float32)
    rows = Rows(CachedSequence(table, past), np.arange(new), features=features, **options)
    want = build_tables([rows], 32, native)
    left_out = OF_STOCK if native else OF_NATIVE | OF_SELECTION
    names = set(want) - left_out
    got = build_tables([rows], 32, native, names)
    assert FEATURES in names and set(got) >= names
    for name in names:
        np.testing.assert_array_equal(got[name], want[name], err_msg=name)
        assert got[name].dtype == want[name].dtype, name
        # A graph may take any of them without the others: budgets of experts take the past alone.
        assert name in build_tables([rows], 32, native, {name})


def test_what_is_read_only_is_written_once() -> None:
    """And again where another array was there in between."""
    request = SimpleNamespace(set_tensor=lambda name, tensor: tensors.__setitem__(name, tensor))
    tensors: dict[str, ov.Tensor] = {}
    inputs = PassInputs(cast(ov.InferRequest, request), ["a"])
    constant, other = np.array([1, 2]), np.array([3, 4])
    constant.flags.writeable = False
    for given, left in ((constant, [1, 2]), (constant, [7, 7]), (other, [3, 4]), (constant, [1, 2])):
        inputs.write({"a": given})
        assert tensors["a"].data.tolist() == left
        tensors["a"].data[...] = 7  # seen where nothing is written
    inputs.write({"a": other})
    inputs.write({"a": other})
    assert tensors["a"].data.tolist() == [3, 4]
