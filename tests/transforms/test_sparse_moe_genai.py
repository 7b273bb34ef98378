"""IR with our experts in OpenVINO GenAI's own pipeline."""

from __future__ import annotations

import shutil
from pathlib import Path

import openvino as ov
import openvino_genai
import pytest
from settings import F32
from transforms.moe_models import LAYERS, moe_folder

import ovspec_ops
from ovspec_transforms import sparse_moe


@pytest.fixture
def folders(tmp_path: Path, demo_ir: Path) -> dict[str, Path]:
    """The same random mixture with the demo's tokenizer: as it was exported, and with SparseMoE."""
    stock = moe_folder(tmp_path / "stock", demo_ir)
    sparse = Path(shutil.copytree(stock, tmp_path / "sparse"))
    model = ov.Core().read_model(stock / "openvino_model.xml")
    sparse_moe(model).require(LAYERS)
    ov.save_model(model, sparse / "openvino_model.xml", compress_to_fp16=False)
    return {"stock": stock, "sparse": sparse}


@pytest.mark.parametrize("backend", ["PA", "SDPA"])
def test_genai_generates_the_same(folders: dict[str, Path], backend: str) -> None:
    def generate(folder: Path) -> str:
        pipeline = openvino_genai.LLMPipeline(
            folder,
            "CPU",
            extensions=[str(ovspec_ops.extension_path())],
            ATTENTION_BACKEND=backend,
            DYNAMIC_QUANTIZATION_GROUP_SIZE="0",
            **F32,
        )
        config = openvino_genai.GenerationConfig(max_new_tokens=16, ignore_eos=True)
        return str(pipeline.generate("The old lighthouse", config))

    text = generate(folders["stock"])
    assert len(text) > 10
    assert generate(folders["sparse"]) == text
