"""`ovspec calibrate`: what it measures, and what it writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from prompts import STORY
from settings import F32
from tiers import by_tier

from ovspec import LLMPipeline, SparseVerify
from ovspec.cli import cli
from ovspec_models import OvspecConfig
from ovspec_models.folder.config import CONFIG_NAME

SETTINGS = ("--property", "INFERENCE_PRECISION_HINT=f32", "--property", "KV_CACHE_PRECISION=f32")


@pytest.fixture
def folder(tmp_path: Path, demo_ir: Path) -> Path:
    return Path(shutil.copytree(demo_ir, tmp_path / "model"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "texts.jsonl"
    lines = [
        json.dumps({"text": STORY * 3}),
        "",
        json.dumps("Once. " + STORY * 2),
        json.dumps({"prompt": "Hi"}),
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def calibrate(folder: Path, data: Path, *arguments: str) -> Result:
    command = ["calibrate", "-m", str(folder), "--data", str(data), "--max-tokens", "700", *SETTINGS]
    return CliRunner().invoke(cli, [*command, *arguments])


def test_calibration_is_written_and_taken(folder: Path, data: Path) -> None:
    before = OvspecConfig.load(folder)
    run = calibrate(
        folder, data, "--budget", "128", "--selection-rule", "paper", "--json", "--ffn-density", "1"
    )
    assert run.exit_code == 0, run.output
    report = json.loads(run.stdout)
    config = OvspecConfig.load(folder)
    assert config is not None and before is not None and config.verify is not None
    assert (config.model, config.draft_model) == (before.model, before.draft_model)
    assert report["verify"]["rule"] == "paper" and report["joint"]["attention_density"] < 1.0
    pipeline = LLMPipeline(folder, verify=SparseVerify(), **F32)
    assert pipeline.verify == SparseVerify(budget=128, rule="paper", ffn_density=1.0)
    graph = LLMPipeline(folder, prefill="sparse", **F32).runner.attention
    assert (graph.selection.rule, graph.coverage) == ("paper", 1.0)


def test_anchors_of_an_older_calibration_mean_nothing_to_another_rule(folder: Path) -> None:
    config = OvspecConfig.load(folder)
    assert config is not None
    config.verify = SparseVerify(anchor_layers=(0, 3), budget=128)
    config.save(folder)
    assert LLMPipeline(folder, verify="sparse", **F32).verify == SparseVerify(budget=128)
    paper = LLMPipeline(folder, verify=SparseVerify(rule="paper"), **F32)
    assert paper.runner.attention.anchor_layers == (0, 3)


@pytest.mark.parametrize(
    ("name", "value"), by_tier([("num_hidden_layers", 7), ("model_type", "llama")], [("model_type", "llama")])
)
def test_a_calibration_of_another_model_is_refused(
    folder: Path, data: Path, name: str, value: object
) -> None:
    config = OvspecConfig.load(folder)
    assert config is not None
    setattr(config.model, name, value)
    config.save(folder)
    LLMPipeline(folder, "CPU", verify="sparse", **F32)  # it has no amounts
    config.verify = SparseVerify(coverage=0.9)
    config.save(folder)
    with pytest.raises(ValueError, match=rf"{CONFIG_NAME}: its amounts are .* another model, with {name}"):
        LLMPipeline(folder, "CPU", verify="sparse", **F32)
    run = calibrate(folder, data, "--budget", "64", "--ffn-density", "1")
    assert run.exit_code == 0, run.output
    assert LLMPipeline(folder, "CPU", verify="sparse", **F32).verify.budget == 64


def test_folder_without_configuration_gets_one(folder: Path, data: Path) -> None:
    (folder / "ovspec_config.json").unlink()
    assert calibrate(folder, data, "--budget", "128", "--ffn-density", "1").exit_code == 0
    config = OvspecConfig.load(folder)
    assert config is not None and config.verify is not None
    assert config.model.model_type == "qwen3" and config.verify.budget == 128


BAD = {
    "budgets": (["--budget", "64", "--rho", "0.1"], "budget=64 contradicts rho=0.1"),
    "target": (["--target-kl", "0"], "--target-kl 0.0: expected a finite number"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_leave_the_folder_as_it_is(folder: Path, data: Path, name: str) -> None:
    arguments, message = BAD[name]
    before = (folder / "ovspec_config.json").read_bytes(), set(folder.iterdir())
    run = calibrate(folder, data, *arguments)
    assert isinstance(run.exception, ValueError) and message in str(run.exception)
    assert ((folder / "ovspec_config.json").read_bytes(), set(folder.iterdir())) == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no text"),
        (b'{"text": "a"}\n{"text": 5}\n', "line 2 holds no text"),
        (b'{"text": "a"}\n{"tex\n', "line 2 is no JSON"),
        (b'{"story": "a"}\n', "line 1 holds no text"),
        (b"\xff\xfe", "is not UTF-8"),
    ],
)
def test_bad_data_names_the_line(folder: Path, tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    run = calibrate(folder, path)
    assert isinstance(run.exception, ValueError) and message in str(run.exception)
    run = calibrate(folder, tmp_path / "missing.jsonl")
    assert isinstance(run.exception, ValueError) and "give a file that can be read" in str(run.exception)


def test_a_cache_of_models_is_refused(folder: Path, data: Path) -> None:
    error = calibrate(folder, data, "--property", "CACHE_DIR=cache").exception
    assert str(error) == "--property CACHE_DIR: what calibration runs is not kept; leave it out"


def test_texts_shorter_than_a_pass_are_refused(folder: Path, data: Path, tmp_path: Path) -> None:
    """They leave nothing to count: the amounts would be those of no pass at all."""
    short = tmp_path / "short.jsonl"
    short.write_text('"Once upon a"\n"Hi"\n', encoding="utf-8")
    for arguments, tokens in (((short,), 3), ((data, "--max-tokens", "5"), 5)):
        error = str(calibrate(folder, *arguments, "--target-kl", "50").exception)
        assert f"texts has {tokens} tokens" in error and "a pass takes 6; give longer texts" in error
