"""EVICT's rule on exported mixtures: trees are cut where the experts that their nodes read cost more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from openvino_genai import GenerationConfig
from schedule.charged import PASS, Charged
from settings import F32

from ovspec.drafters import AssistantDrafter
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.requests.request import Request
from ovspec.generation.generation_config import resolve, updated
from ovspec.operations.backends import Backends
from ovspec.operations.expert_budgets import ExpertConfig
from ovspec.passes.pass_result import PassResult
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner
from ovspec_models import ModelInfo

NEW_TOKENS, NODES = 40, 12
#: Of an expert, as a share of what a pass takes beside them.
PRICES = (0.0, 0.01, 0.5)


@pytest.fixture(scope="module", params=["Qwen3-MoE", "Mixtral"])
def folder(request: pytest.FixtureRequest, exported_family: Callable[[str], Path]) -> Path:
    return exported_family(request.param)


def runner(folder: Path) -> ModelRunner:
    """Its passes count the experts that they read, and read as many as they choose."""
    backends = Backends.resolve(folder, "CPU", F32, experts=ExpertConfig("native", -1))
    return ModelRunner(folder, backends=backends)


def answers(engine: LLMEngine, prompt: NDArray[np.int64], make: Callable[[], Any], **options: Any) -> Any:
    """Tokens of a few texts, one after the other, all by one schedule."""
    given = {"max_new_tokens": NEW_TOKENS, "ignore_eos": True, **options}
    settings = resolve(updated(GenerationConfig(), given), (), has_draft=bool(options))
    schedule, found = make(), list[list[int]]()
    for number in range(4):
        text = prompt[10 * number : 10 * number + 40].tolist()
        found += engine.generate([Request(str(number), text, settings, schedule=schedule)]).values()
    return found, schedule


@pytest.mark.slow
def test_trees_are_cut_by_what_experts_cost(folder: Path, prompt: NDArray[np.int64]) -> None:
    """The texts are those of plain decoding, whatever experts cost."""
    plain, _ = answers(LLMEngine(runner(folder), None, "dense", 64), prompt, lambda: None)
    vocab, tree = ModelInfo.read(folder).vocab_size, {"tree_depth": 4, "branching_factor": 3}
    sizes, read = dict[float, float](), dict[float, float]()
    for price in PRICES:
        target, experts = runner(folder), list[int]()

        def cost(
            batch: Sequence[Rows], result: PassResult, price: float = price, experts: list[int] = experts
        ) -> float:
            count = sum(result.stats.experts_read)
            assert count
            experts.append(count)
            return PASS * (1 + price * count)

        engine = LLMEngine(target, AssistantDrafter(runner(folder), vocab, 64), "dense", 64)
        found, schedule = answers(
            engine,
            prompt,
            lambda target=target, cost=cost: Charged(target, cost, NODES),
            num_assistant_tokens=NODES,
            **tree,
        )
        assert found == plain
        sizes[price], read[price] = mean(schedule.sizes), mean(experts)
    free, cheap, dear = (sizes[price] for price in PRICES)
    assert free > 1.2 * cheap > 1.2 * dear
    assert read[0.0] > read[0.01] > read[0.5]
