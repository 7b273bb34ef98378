"""`ovspec calibrate --target-kl`: one number sets attention, experts and channels."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from commands import one_line
from commands import ovspec as ovspec_command
from prompts import STORY
from settings import F32
from transforms.moe_models import EXPERTS, LAYERS, TOP_K, moe_folder

import ovspec
from ovspec.calibrate.fidelity_meter import Fidelity
from ovspec.calibrate.fidelity_search import Part, search
from ovspec.cli import cli
from ovspec_models import OvspecConfig
from ovspec_models.folder.sparse_verify import SparseVerify

EXACT = {**F32, "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "texts.jsonl"
    path.write_text("\n".join(json.dumps(text) for text in (STORY, "Once. " + STORY)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory, demo_ir: Path) -> Path:
    return moe_folder(tmp_path_factory.mktemp("mixture") / "model", demo_ir)


def calibrate(folder: Path, data: Path, *arguments: str) -> Result:
    properties = [f"--property={name}={value}" for name, value in EXACT.items()]
    command = ["calibrate", "-m", str(folder), "--data", str(data), "--positions", "24", *properties]
    return CliRunner().invoke(cli, [*command, *arguments])


def test_mixture_keeps_to_the_target(mixture: Path, data: Path) -> None:
    run = calibrate(mixture, data, "--target-kl", "0.2", "--json")
    assert run.exit_code == 0, run.output
    report = json.loads(run.stdout)
    assert report["joint"]["kl"] <= report["target_kl"] == 0.2
    assert list(report["parts"]) == ["attention", "experts"]
    mass = np.array(report["expert_mass"])
    assert mass.shape == (LAYERS, EXPERTS) and mass.sum(axis=1) == pytest.approx(1, abs=1e-3)
    config = OvspecConfig.load(mixture)
    assert config is not None and config.verify is not None
    budgets = config.verify.expert_budget
    assert budgets == -1 or (
        isinstance(budgets, tuple) and all(TOP_K <= budget <= EXPERTS for budget in budgets)
    )
    pipeline = ovspec.LLMPipeline(mixture, "CPU", verify="sparse", **EXACT)
    assert isinstance(pipeline.verify, SparseVerify)
    assert pipeline.verify.coverage == config.verify.coverage is not None
    assert pipeline.verify.anchor_layers is None


def test_given_amounts_stand(mixture: Path, data: Path) -> None:
    run = calibrate(mixture, data, "--target-kl", "50", "--budget", "128")
    assert run.exit_code == 0, run.output
    assert "together" in run.stdout and "is LOSSY by that" in run.stdout
    config = OvspecConfig.load(mixture)
    assert config is not None and config.verify is not None
    # Every budget meets this target: the smallest are taken, and the amount that was given is kept.
    assert (config.verify.budget, config.verify.coverage) == (128, None)
    assert isinstance(config.verify.expert_budget, tuple)
    assert all(TOP_K <= budget < EXPERTS for budget in config.verify.expert_budget)


def test_given_amounts_that_cost_more_than_the_target_are_said(
    demo_ir: Path, data: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(demo_ir, tmp_path / "model"))
    run = calibrate(folder, data, "--target-kl", "0.001", "--budget", "32", "--ffn-density", "0.1")
    assert run.exit_code == 0, run.output
    assert " and not at most 0.001 nats a position" in run.stdout
    assert "warning: --target-kl 0.001 is not met: the amounts that are given cost" in run.stderr


@pytest.mark.slow
def test_channels_of_a_dense_model(demo_ir: Path, data: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(demo_ir, tmp_path / "model"))
    run = calibrate(folder, data, "--target-kl", "0.5", "--coverage", "0.9", "--json")
    assert run.exit_code == 0, run.output
    report = json.loads(run.stdout)
    densities = report["parts"]["channels"]["set"]["ffn_density"]
    assert len(densities) == 6 and all(0 < density < 1 for density in densities)
    assert len(report["channel_densities"]["0.9"]) == 6
    pipeline = ovspec.LLMPipeline(folder, "CPU", verify="sparse", **F32)
    assert isinstance(pipeline.verify, SparseVerify)
    assert pipeline.verify.ffn_density == tuple(densities)
    metrics = pipeline.generate([STORY], max_new_tokens=6).perf_metrics
    assert 0.0 < metrics.get_ffn_density() < 1.0
    assert metrics.why_lossy == "sparse verification approximates the model (attention, channels)"


BAD = {
    "target": (["--target-kl", "-1"], "--target-kl -1.0: expected a finite number"),
    "nothing": (["--target-kl", "0"], "--target-kl 0.0: expected a finite number"),
    "too many experts": (["--expert-budget", "9"], "expert budget 9 is out of range"),
    "too few experts": (["--expert-budget", "2"], "expert budget 2 is out of range"),
    "density": (["--ffn-density", "inf"], "ffn_density=inf: expected a share above 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_leave_the_folder_as_it_is(mixture: Path, data: Path, name: str) -> None:
    arguments, message = BAD[name]
    before = {path: path.stat().st_mtime_ns for path in mixture.iterdir()}
    run = calibrate(mixture, data, *arguments)
    assert isinstance(run.exception, ValueError) and message in str(run.exception)
    assert "\n" not in str(run.exception)
    assert {path: path.stat().st_mtime_ns for path in mixture.iterdir()} == before


def test_parts_step_back_until_they_hold_together() -> None:
    parts = [
        Part("attention", {"coverage": 1.0}, ({"coverage": 0.9}, {"coverage": 0.5}, {"coverage": 0.1})),
        Part("channels", {"ffn_density": 1.0}, ({"ffn_density": 0.8}, {"ffn_density": 0.4})),
    ]

    def measure(sparse: SparseVerify) -> Fidelity:
        attention = 1.0 - (sparse.coverage or 1.0)
        channels = 0.5 * (1.0 - float(str(sparse.ffn_density)))
        # Together they cost more than one after the other.
        kl = attention + channels + 4 * attention * channels
        return Fidelity(
            kl, 1.0, ffn_density=float(str(sparse.ffn_density)), attention_density=sparse.coverage or 1.0
        )

    found = search(measure, SparseVerify(), parts, 1.2)
    assert [one.fields for one in found.parts] == [{"coverage": 0.9}, {"ffn_density": 0.4}]
    assert found.joint.kl <= 1.2
    nothing = search(measure, SparseVerify(), parts, 0.01)
    assert nothing.sparse == SparseVerify(coverage=1.0, ffn_density=1.0) and nothing.joint.kl == 0.0


def test_a_part_that_saves_next_to_nothing_stays_whole() -> None:
    parts = [
        Part("attention", {"coverage": 1.0}, ({"coverage": 0.9}, {"coverage": 0.5})),
        Part("channels", {"ffn_density": 1.0}, ({"ffn_density": 0.98}, {"ffn_density": 0.4})),
    ]

    def measure(sparse: SparseVerify) -> Fidelity:
        channels = float(str(sparse.ffn_density))
        # Texts so short that every block is one of those that are always read.
        return Fidelity(1.0 - channels, 1.0, ffn_density=channels, attention_density=0.97)

    found = search(measure, SparseVerify(), parts, 2.0)
    assert [one.fields for one in found.parts] == [{"coverage": 1.0}, {"ffn_density": 0.4}]
    found.check_worth(2.0)
    little = search(measure, SparseVerify(), parts, 0.2)
    assert little.sparse == SparseVerify(coverage=1.0, ffn_density=1.0)
    with pytest.raises(ValueError, match=r"nothing worth leaving out: .* attention 0%, channels 2% of what"):
        little.check_worth(0.2)


@pytest.mark.slow
def test_nothing_is_written_where_nothing_is_worth_it(demo_ir: Path, data: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(demo_ir, tmp_path / "model"))
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    properties = [f"--property={name}={value}" for name, value in F32.items()]
    run = ovspec_command(
        "calibrate", "-m", folder, "--data", data, "--positions", "24", "--target-kl", "1e-7", *properties
    )
    assert "--target-kl 1e-07: nothing worth leaving out" in one_line(run)  # with exit code 2
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
