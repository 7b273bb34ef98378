"""Whatever head drafts, the text is that of plain decoding."""

from __future__ import annotations

from itertools import product

import pytest
from drafters import test_dflash, test_eagle3, test_hydra, test_medusa, test_mtp
from drafters.dflash_models import BOUNDARIES as DFLASH_BOUNDARIES
from drafters.eagle3_models import BOUNDARIES as EAGLE3_BOUNDARIES
from drafters.eagle3_models import pair
from drafters.test_eagle3 import MODES, SAMPLING, TREE, answer, plain, settings_of, target
from tiers import by_tier

from ovspec.drafters.cached_head import CachedHead
from ovspec.drafters.drafter import Drafter
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.requests.request import Request
from ovspec.runner.model_runner import ModelRunner

#: Hydra heads without and with the decoder layer of Hydra++.
HYDRA = {"hydra": "mlp", "hydra++": "prefix-mlp"}
KINDS = ("eagle3", "dflash", "mtp", "medusa", *HYDRA)
#: Their heads guess a place without the one before it, and sampled texts are not what they learnt.
PARALLEL = ("dflash", "medusa")


FIRST = [(kind, True, True, "commit", 4) for kind in KINDS]


def models_of(kind: str) -> tuple[ModelRunner, Drafter]:
    """A target that returns the states that the head reads, and the head."""
    if kind == "eagle3":
        return target("llama", EAGLE3_BOUNDARIES), test_eagle3.head("llama")
    if kind == "dflash":
        return target("llama", DFLASH_BOUNDARIES), test_dflash.head()
    last = target("llama", (test_medusa.BOUNDARY,))
    if kind in HYDRA:
        return last, test_hydra.heads(HYDRA[kind])
    return last, test_mtp.head() if kind == "mtp" else test_medusa.heads()


@pytest.mark.parametrize(
    ("kind", "tree", "sampled", "mode", "together"),
    by_tier(
        [
            # Half of all: one more request where one more of the others is set.
            (kind, tree, sampled, mode, 4 if (tree + sampled + (mode == "commit")) % 2 else 1)
            for kind, tree, sampled, mode in product(KINDS, (False, True), (False, True), MODES)
        ],
        FIRST,
    ),
)
def test_text_is_that_of_plain_decoding(
    kind: str, tree: bool, sampled: bool, mode: str, together: int
) -> None:
    runner, drafter = models_of(kind)
    engine = LLMEngine(runner, drafter, MODES[mode], 32)
    settings = settings_of(**SAMPLING if sampled else {}, **TREE if tree else {})
    got, metrics = answer(engine, pair().prompts[:together], settings)
    assert got == plain("llama", sampled)[:together]
    if not (sampled and kind in PARALLEL):
        assert all(sum(raw.accepted_lengths) > 0 for raw in metrics)
    assert runner.blocks.usage == 0.0
    if isinstance(drafter, CachedHead):
        assert drafter.runner.blocks.usage == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_accepts_no_less_than_the_chain_of_its_depth(kind: str) -> None:
    """Nor the same: else nothing of the tree beside its first path has been tried."""
    runner, drafter = models_of(kind)
    engine, accepted = LLMEngine(runner, drafter, "dense", 32), []
    for shape in ({}, {**TREE, "num_assistant_tokens": 63}):
        _, metrics = answer(engine, pair().prompts, settings_of(**shape))
        accepted.append([sum(raw.accepted_lengths) / len(raw.accepted_lengths) for raw in metrics])
    assert all(tree >= chain for chain, tree in zip(*accepted, strict=True)) and accepted[0] != accepted[1]


@pytest.mark.parametrize("kind", ["eagle3", "dflash", "mtp", "hydra++"])
def test_shared_beginnings_give_the_same_drafts(kind: str) -> None:
    """What both caches have of a prompt is not read again; without the head's part all of it is."""
    (runner, drafter), prompt = models_of(kind), pair().prompts[2]
    assert isinstance(drafter, CachedHead)
    engine = LLMEngine(runner, drafter, "dense", 32)

    def again() -> tuple[int, list[int]]:
        request = Request("one", prompt, settings_of())
        engine.add_request(request)
        while not (outputs := engine.step()):
            pass
        cached = outputs[0].metrics.num_cached_tokens
        while engine.has_unfinished_requests:
            engine.step()
        return cached, request.metrics.accepted_lengths

    drafter.runner.blocks.forget()
    (none, first), (some, second) = again(), again()
    assert (none, some) == (0, 64) and first == second
