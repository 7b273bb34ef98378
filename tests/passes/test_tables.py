"""The inputs of a pass: only those that its graph has are made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovspec.cache.cache import CachedSequence
from ovspec.passes.tables import FEATURES, Rows, build_tables
from ovspec_transforms import QQ_BIAS, QQ_BIAS_BEGINS, SLOT_MAPPING, VERIFY_TABLES

OF_NATIVE = {VERIFY_TABLES, SLOT_MAPPING, "written_begins"}
OF_EXPERTS = {"verify_past_lens"}
OF_STOCK = {QQ_BIAS, QQ_BIAS_BEGINS}
FEW = {"sampled": 2, "states": 1, "text_length": 400}


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(
    "options", [{}, FEW, {"budget": 3}, {"offset": 40}, {"is_prompt": True, "budget": 3}]
)
@pytest.mark.parametrize("new", [1, 5, 64])
@pytest.mark.parametrize("past", [0, 31, 32, 63, 700])
def test_inputs_do_not_depend_on_what_else_is_made(
    past: int, new: int, options: dict[str, Any], native: bool
) -> None:
    options = {**options, "sampled": min(new, options.get("sampled", 1))}
    table = np.random.default_rng(0).permutation(99).astype(np.int32)
    features = np.ones((new, 1, 8), np.float32)
    rows = Rows(CachedSequence(table, past), np.arange(new), features=features, **options)
    want = build_tables([rows], 32, native)
    left_out = OF_STOCK if native else OF_NATIVE | OF_EXPERTS
    names = set(want) - left_out
    got = build_tables([rows], 32, native, names)
    assert FEATURES in names and set(got) >= names
    for name in names:
        np.testing.assert_array_equal(got[name], want[name], err_msg=name)
        assert got[name].dtype == want[name].dtype, name
        # A graph may take any of them without the others: budgets of experts take the past alone.
        assert name in build_tables([rows], 32, native, {name})
