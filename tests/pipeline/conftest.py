"""Fixtures: the pipeline of OpenVINO GenAI that ours is compared with."""

from __future__ import annotations

from pathlib import Path

import openvino_genai
import pytest
from settings import F32


@pytest.fixture(scope="module")
def genai(demo_ir: Path) -> openvino_genai.LLMPipeline:
    """OpenVINO GenAI's pipeline of the demo target, in f32."""
    return openvino_genai.LLMPipeline(demo_ir, "CPU", **F32)
