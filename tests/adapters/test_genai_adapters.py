"""The same adapters in openvino_genai and here: greedy text is the same."""

from __future__ import annotations

from pathlib import Path

import openvino_genai
import pytest
from adapter_files import random_adapter
from prompts import PROMPTS
from settings import F32
from tiers import by_tier

import ovspec


@pytest.mark.parametrize("mode", by_tier(["MODE_AUTO", "MODE_STATIC"], ["MODE_AUTO"]))
def test_greedy_text_is_the_same(demo_ir: Path, tmp_path: Path, mode: str) -> None:
    """Of the adapters of the pipeline; and, where the mode lets a call choose, of its own and of none."""
    files = [
        random_adapter(tmp_path / f"{seed}.safetensors", demo_ir, rank, seed, 2.0)
        for seed, rank in ((1, 8), (2, 3))
    ]
    texts = []
    for package in (openvino_genai, ovspec):
        config, one, two = package.AdapterConfig, *map(package.Adapter, files)
        mine = config([(one, 0.75), (two, -1.5)], getattr(config.Mode, mode))
        pipeline = package.LLMPipeline(demo_ir, "CPU", adapters=mine, **F32)
        calls = [{}] if mode == "MODE_STATIC" else [{}, {"adapters": config(two)}, {"adapters": config()}]
        texts.append(
            [
                str(pipeline.generate(prompt, max_new_tokens=24, **call))
                for call in calls
                for prompt in PROMPTS[:4]
            ]
        )
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == len(texts[0])
