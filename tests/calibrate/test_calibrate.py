"""`ovspec calibrate`: what it measures, and what it writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from click.testing import CliRunner, Result
from prompts import STORY
from settings import F32

import ovspec
from ovspec.calibrate.calibration import OverlapMeter
from ovspec.cli import cli
from ovspec.runtime.attention_config import AttentionConfig
from ovspec.runtime.cache import CachedSequence
from ovspec.runtime.model_runner import ModelRunner
from ovspec.runtime.tables import Rows
from ovspec_models import OvspecConfig

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
    run = calibrate(folder, data, "--anchors", "2", "--budget", "128", "--selection-query", "union", "--json")
    assert run.exit_code == 0, run.output
    report = json.loads(run.stdout)
    config = OvspecConfig.load(folder)
    assert config is not None and before is not None and config.verify is not None
    assert (config.model, config.draft_model) == (before.model, before.draft_model)
    anchors = config.verify.anchor_layers
    assert anchors is not None and len(anchors) == 2 and anchors[0] == 0
    assert report["verify"]["anchor_layers"] == list(anchors or ())
    overlap = np.array(report["overlap"])
    shares = [overlap[max(a for a in anchors if a <= layer), layer] for layer in range(6)]
    assert report["overlap_with_anchor"] == pytest.approx(shares)
    others = [sum(overlap[0, :b]) + sum(overlap[b, b:]) for b in range(1, 6)]
    assert sum(shares) == pytest.approx(max(others), abs=1e-3)
    pipeline = ovspec.LLMPipeline(folder, verify=ovspec.SparseVerify(), **F32)
    assert pipeline.verify == ovspec.SparseVerify(budget=128, query="union", anchor_layers=anchors)
    graph = ovspec.LLMPipeline(folder, prefill="sparse", **F32).runner.attention
    assert (graph.anchor_layers, graph.selection.query, graph.coverage) == (anchors, "union", 1.0)


def test_table_and_a_threshold(folder: Path, data: Path) -> None:
    run = calibrate(folder, data, "--overlap", "1.0", "--l0", "64", "--rho", "0.1")
    assert run.exit_code == 0, run.output
    assert "overlap with it" in run.stdout and "anchor_layers 0,1,2,3,4,5 written to" in run.stdout
    config = OvspecConfig.load(folder)
    assert config is not None and config.verify is not None
    assert (config.verify.L0, config.verify.rho, config.verify.budget) == (64, 0.1, None)
    assert calibrate(folder, data, "--overlap", "0", "--coverage", "0.5").exit_code == 0
    config = OvspecConfig.load(folder)
    assert config is not None and config.verify is not None
    assert (config.verify.anchor_layers, config.verify.L0, config.verify.coverage) == ((0,), None, 0.5)


def test_folder_without_configuration_gets_one(folder: Path, data: Path) -> None:
    (folder / "ovspec_config.json").unlink()
    assert calibrate(folder, data, "--budget", "128").exit_code == 0
    config = OvspecConfig.load(folder)
    assert config is not None and config.verify is not None
    assert config.model.model_type == "qwen3" and len(config.verify.anchor_layers or ()) == 3


def test_lists_are_those_of_a_model_whose_every_layer_selects(demo_ir: Path) -> None:
    """In layer 0, whose input does not depend on what was attended before; and watching changes nothing."""
    sparse = ovspec.SparseVerify(budget=96)
    meter = OverlapMeter(demo_ir, sparse, dict(F32))
    everywhere = AttentionConfig("native", True, (0, 1, 2, 3, 4, 5))
    runners = [meter._runner, ModelRunner(demo_ir, "CPU", everywhere, F32)]
    dense = ModelRunner(demo_ir, "CPU", AttentionConfig("native"), F32)
    tokens = np.random.default_rng(0).integers(2, 4096, 320)
    logits, counts = [], []
    for runner in (*runners, dense):
        cached = CachedSequence()
        runner.prefill(cached, tokens[:310], 128)
        result = runner.forward([Rows(cached, tokens[310:], sampled=10, budget=3)])
        logits.append(result.logits.copy())
        if runner.attention.selects:
            counts.append(np.array(result.output("selected_counts")))
    np.testing.assert_allclose(logits[0], logits[2], atol=1e-4, rtol=0)
    np.testing.assert_array_equal(counts[0][0], counts[1][0])
    assert (counts[0] == 3).all()


BAD = {
    "both": (["--anchors", "2", "--overlap", "0.5"], "exclude each other"),
    "overlap": (["--overlap", "2"], "--overlap 2.0: expected a share"),
    "too many": (["--anchors", "7"], "--anchors 7: expected 1 to 6"),
    "budgets": (["--budget", "64", "--rho", "0.1"], "budget=64 contradicts rho=0.1"),
    "nothing selected": (["--budget", "5000"], "nothing was selected: the longest text has"),
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


def test_models_without_selecting_layers_are_refused() -> None:
    data = ov.opset15.parameter([1, 4], ov.Type.f32)
    with pytest.raises(ValueError, match=r"no decoder|refuses this model"):
        OverlapMeter(ov.Model([ov.opset15.relu(data)], [data]), ovspec.SparseVerify(budget=64))


def test_a_cache_of_models_is_refused(folder: Path, data: Path) -> None:
    error = calibrate(folder, data, "--property", "CACHE_DIR=cache").exception
    assert str(error) == "--property CACHE_DIR: what calibration runs is not kept; leave it out"
