"""Sparse verification without a native operation: what anchors keep, and what every layer then attends."""

from __future__ import annotations

from pathlib import Path

import pytest
from passes.selection_life import probed_runner
from stock.stock_oracle import RULES, check_life
from tiers import by_tier

from ovspec.runner import model_runner


# "everything" has what the others have.
@pytest.mark.parametrize("name", by_tier(RULES, ("everything",)))
def test_every_rule_selects_and_attends_as_the_oracle(demo_ir: Path, name: str) -> None:
    check_life(probed_runner(demo_ir, RULES[name]))


@pytest.mark.parametrize("name", by_tier(RULES, ("everything",)))
def test_lists_of_the_blocks_of_a_gpu(demo_ir: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    # The CPU's attention takes other blocks: it writes some tokens' keys to one place, in any order.
    monkeypatch.setattr(model_runner.ovspec_ops, "BLOCK_SIZE", 16)
    monkeypatch.setattr(model_runner, "block_size_of", lambda compiled: 16)
    check_life(probed_runner(demo_ir, RULES[name], attends=False), attends=False)
