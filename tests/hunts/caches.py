"""The caches of an engine's models, as large as requests can make them."""

from __future__ import annotations

import numpy as np

from ovspec.engine.llm_engine import LLMEngine
from ovspec.runner.model_runner import ModelRunner


def runners(engine: LLMEngine) -> list[ModelRunner]:
    """The models of an engine: its target, and those that draft."""
    drafters = [engine.drafter, *getattr(engine.drafter, "drafters", ())]
    return [engine.target, *(drafter.runner for drafter in drafters if hasattr(drafter, "runner"))]


def fill_caches(engine: LLMEngine, tokens: int) -> None:
    """Let every cache have room for so many tokens, and write to all of it.

    The system gives a page of memory when it is first written. Else a hunt's memory grows until every block
    has been used.
    """
    for runner in runners(engine):
        runner.cache.ensure(tokens // runner.block_size)
        for spec in runner.cache.specs:
            runner.cache.tensor(spec.name).data.view(np.uint8).fill(0)
