"""Draft trees from the command line: what is drafted, and what is refused in one line."""

from __future__ import annotations

import json

import pytest
from commands import one_line, ovspec
from tiers import by_tier

from ovspec_models import demo_pair_path

GENERATE = ("generate", "-m", demo_pair_path(), "-p", "Once upon a time", "--max-new-tokens", "12")
TREE = ("--tree-depth", "3", "--branching-factor", "2", "--num-assistant-tokens", "6")


@pytest.mark.parametrize("schedule", by_tier(["constant", "auto"], ["auto"]))
def test_a_tree_gives_the_text_of_plain_decoding(schedule: str) -> None:
    plain, drafted = (
        json.loads(ovspec(*GENERATE, "--json", *options).stdout)
        for options in (
            ("--drafter", "none"),
            (*TREE, "--num-assistant-tokens-schedule", schedule),
        )
    )
    assert plain["text"] == drafted["text"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((*TREE, "--drafter", "prompt_lookup"), "--tree-depth 3: drafter 'prompt_lookup' can't draft"),
        ((*TREE, "--drafter", "suffix"), "it gives no probabilities"),
        ((*TREE[:2], "--drafter", "none"), "--tree-depth 3 needs a draft model"),
        ((*TREE[:4],), "--num-assistant-tokens: expected at least --tree-depth 3"),
        (TREE[2:], "--branching-factor 2 has no effect on chains: give tree_depth"),
        ((*TREE, "--acceptance-threshold", "0.5"), "0.5 has no rule for trees"),
        ((*TREE, "--property", "KEY_CACHE_QUANT_MODE=BY_CHANNEL"), "trees: key_cache.0 has blocks"),
    ],
)  # fmt: skip
def test_trees_that_nobody_can_draft_or_verify(options: tuple[str, ...], expected: str) -> None:
    run = ovspec(*GENERATE, *options)
    assert run.returncode == 2 and expected in one_line(run)
