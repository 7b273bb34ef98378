"""Routed experts by OpenVINO's operations on a GPU, all of them and a budget, against the CPU in f32."""

from __future__ import annotations

import numpy as np
import pytest
from gpu.test_gpu_passes import TOLERANCE
from numpy.typing import NDArray
from settings import F32_CACHE
from transforms.moe_models import EXPERTS, TOP_K, tiny_moe

from ovspec.cache.cache import CachedSequence
from ovspec.operations.attention_config import AttentionConfig
from ovspec.operations.expert_budgets import ExpertConfig
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner

pytestmark = pytest.mark.gpu

# Rows that a CPU rounds to 8 bits may choose other experts.
EXACT = {**F32_CACHE, "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}


@pytest.mark.parametrize("budget", [TOP_K, TOP_K + 1, EXPERTS])
def test_experts_are_those_of_the_cpu(gpu: str, budget: int) -> None:
    (expected, read), (found, read_on_gpu) = (verify(device, budget) for device in ("CPU", gpu))
    for rows, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, rows, atol=TOLERANCE, rtol=0)
    assert read == read_on_gpu


def verify(device: str, budget: int) -> tuple[list[NDArray[np.float32]], tuple[int, ...]]:
    """Logits of a prompt, of a pass without limits and of one with them, and the experts that it read."""
    experts = ExpertConfig("stock", budget)
    runner = ModelRunner(tiny_moe(), device, AttentionConfig("stock"), EXACT, experts=experts)
    rng, sequence, logits = np.random.default_rng(0), CachedSequence(), []
    for count, limited in ((40, False), (5, False), (5, True)):
        rows = Rows(sequence, rng.integers(0, 96, count), sampled=count, limits_experts=limited)
        result = runner.forward([rows])
        logits.append(result.logits.copy())
    return logits, result.stats.experts_read
