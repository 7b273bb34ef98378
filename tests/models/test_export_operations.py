"""`ovspec export --sparse-moe --sparse-ffn`: IR with our operations, here and in OpenVINO GenAI."""

from __future__ import annotations

import shutil
from pathlib import Path

import openvino as ov
import openvino_genai
import pytest
from click.testing import CliRunner, Result
from settings import F32

import ovspec
from ovspec.bench.source import ModelSource
from ovspec.bench.verify import VerifyBench
from ovspec.cli import cli
from ovspec_models import ModelInfo, OvspecConfig
from ovspec_models.export.bake import bake_operations

pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")

LAYERS, PROMPT = 2, "The old lighthouse"
EXACT = {**F32, "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, demo_draft: Path) -> Path:
    """A random Qwen3-MoE with the demo's tokenizer."""
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    folder = tmp_path_factory.mktemp("mixture") / "checkpoint"
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=4096, hidden_size=64, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, num_experts=6, num_experts_per_tok=2,
        moe_intermediate_size=32, norm_topk_prob=True, max_position_embeddings=512,
    )  # fmt: skip
    model = Qwen3MoeForCausalLM(config)
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.2)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo_draft / name, folder)
    return folder


def export(checkpoint: Path, out: Path, *options: str) -> Result:
    return CliRunner().invoke(cli, ["export", "-m", str(checkpoint), str(out), *options])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Path:
    out = tmp_path_factory.mktemp("ir") / "baked"
    run = export(checkpoint, out, "--weight-format", "int8", "--sparse-moe")
    assert run.exit_code == 0, run.output
    return out


def test_folder_says_what_it_holds(folder: Path) -> None:
    config = OvspecConfig.load(folder)
    assert config is not None and config.operations == ["sparse_moe"]
    assert ModelInfo.read(folder).weight_format() == "int8"
    card = " ".join((folder / "README.md").read_text(encoding="utf-8").split())
    assert "Its IR holds operations of ovspec (sparse_moe)" in card and "plain OpenVINO IR" not in card
    assert not list(folder.glob("with_operations*"))


def test_genai_and_ovspec_say_the_same(folder: Path) -> None:
    theirs = openvino_genai.LLMPipeline(folder, "CPU", extensions=[str(ovspec.extension_path())], **EXACT)
    config = openvino_genai.GenerationConfig(max_new_tokens=12, ignore_eos=True)
    text = str(theirs.generate(PROMPT, config))
    pipeline = ovspec.LLMPipeline(folder, "CPU", **EXACT)
    assert pipeline.generate(PROMPT, max_new_tokens=12, ignore_eos=True) == text
    # Operations that the IR contains already are not added again.
    assert not [report for report in pipeline.runner.reports if report.name == "SparseMoE"]
    limited = ovspec.LLMPipeline(folder, "CPU", verify=ovspec.SparseVerify(expert_budget=2), **EXACT)
    metrics = limited.generate([PROMPT], max_new_tokens=6, ignore_eos=True).perf_metrics
    assert metrics.get_experts_read() == 2.0
    stock = ovspec.LLMPipeline(folder, "CPU", attention="stock", **EXACT)
    assert stock.generate(PROMPT, max_new_tokens=12, ignore_eos=True) == text


def test_weights_stay_mapped(folder: Path) -> None:
    core = ov.Core()
    core.add_extension(str(ovspec.extension_path()))
    model = core.read_model(folder / "openvino_model.xml")
    layers = [node for node in model.get_ops() if node.get_type_name() == "SparseMoE"]
    assert len(layers) == LAYERS
    weights = [layer.input(3).get_source_output().get_node().data for layer in layers]
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    mapped = [line.split()[0].split("-") for line in maps if line.endswith("baked/openvino_model.bin")]
    for weight in weights:
        address = weight.__array_interface__["data"][0]
        assert any(int(begin, 16) <= address < int(end, 16) for begin, end in mapped)


def test_stock_is_not_to_be_had_of_it(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"experts='stock': layer .* is our operation already"):
        ovspec.LLMPipeline(folder, "CPU", experts="stock")
    with pytest.raises(ValueError, match=r"--backend stock: .* holds our operations \(sparse_moe\)"):
        VerifyBench(ModelSource.from_folder(folder), (64,), (1,), ovspec.SparseVerify(), 1, ("stock",))


@pytest.mark.slow
def test_feed_forward_layers_as_well(tmp_path: Path, demo_draft: Path) -> None:
    out = tmp_path / "out"
    run = export(demo_draft, out, "--weight-format", "fp16", "--sparse-ffn")
    assert run.exit_code == 0, run.output
    config = OvspecConfig.load(out)
    assert config is not None and config.operations == ["sparse_ffn"]
    theirs = openvino_genai.LLMPipeline(out, "CPU", extensions=[str(ovspec.extension_path())], **EXACT)
    settings = openvino_genai.GenerationConfig(max_new_tokens=12, ignore_eos=True)
    pipeline = ovspec.LLMPipeline(out, "CPU", verify=ovspec.SparseVerify(ffn_density=0.5), **EXACT)
    metrics = pipeline.generate([PROMPT], max_new_tokens=6, ignore_eos=True).perf_metrics
    assert metrics.get_ffn_density() == pytest.approx(0.5)
    pipeline.verify = "dense"
    text = pipeline.generate(PROMPT, max_new_tokens=12, ignore_eos=True)
    assert text == str(theirs.generate(PROMPT, settings))
    with pytest.raises(ValueError, match=r"ffn='stock': layer .* is our operation already"):
        ovspec.LLMPipeline(out, "CPU", ffn="stock")


def test_model_without_experts(tmp_path: Path, demo_draft: Path) -> None:
    run = export(demo_draft, tmp_path / "out", "--weight-format", "fp16", "--sparse-moe")
    assert isinstance(run.exception, ValueError) and "no routed experts" in str(run.exception)
    assert list(tmp_path.iterdir()) == []
    run = export(demo_draft, tmp_path / "out", "--allow-partial")
    assert isinstance(run.exception, ValueError) and "allow_partial needs operations" in str(run.exception)


def test_what_was_not_replaced_is_not_recorded(tmp_path: Path, demo_draft: Path) -> None:
    run = export(
        demo_draft,
        tmp_path / "out",
        "--weight-format",
        "fp16",
        "--sparse-moe",
        "--sparse-ffn",
        "--allow-partial",
    )
    assert run.exception is None, run.output
    assert "it has no layer for sparse_moe" in run.output
    assert OvspecConfig.load(tmp_path / "out").operations == ["sparse_ffn"]


def test_layer_of_an_unknown_form_is_named(tmp_path: Path, demo_ir: Path) -> None:
    """With a router and no experts that belong to it."""
    from openvino import opset15 as ops

    core = ov.Core()
    model = core.read_model(demo_ir / "openvino_model.xml")
    logits = model.get_results()[0].input(0).get_source_output()
    router = ops.topk(logits, ops.constant(2), -1, "max", "value", name="router")
    model.add_results([ops.result(router.output(1))])
    ov.save_model(model, tmp_path / "openvino_model.xml")
    del model
    before = (tmp_path / "openvino_model.xml").read_bytes()
    with pytest.raises(ValueError, match=r"layer router: .*--allow-partial"):
        bake_operations(tmp_path, ["sparse_moe"])
    assert (tmp_path / "openvino_model.xml").read_bytes() == before
    baked = bake_operations(tmp_path, ["sparse_moe"], allow_partial=True)
    assert baked.left == ("router: a router whose experts have a form that is not known",)
    assert baked.operations == ()
