"""`ovspec calibrate --ffn-rule`: fixed sets of channels, measured, written, and used."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from prompts import STORY
from settings import F32

import ovspec
from ovspec import CommitVerify, LLMPipeline, SparseVerify
from ovspec.calibrate.fidelity_meter import FidelityMeter
from ovspec.cli import cli
from ovspec.generation.inputs import encode, read_tokenizer
from ovspec.runtime.attention_config import AttentionConfig
from ovspec.runtime.ffn_budgets import ffn_config
from ovspec.runtime.model_runner import ModelRunner
from ovspec_models import CHANNELS_NAME, ChannelSets, OvspecConfig

Make = Callable[..., LLMPipeline]
CHANNELS = 768


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "texts.jsonl"
    path.write_text("\n".join(json.dumps(text) for text in (STORY * 2, "Once. " + STORY)), encoding="utf-8")
    return path


def calibrate(folder: Path, data: Path, *arguments: str) -> Result:
    properties = [f"--property={name}={value}" for name, value in F32.items()]
    limits = ["--positions", "24", "--coverage", "0.9", "--stride", "8"]
    command = ["calibrate", "-m", str(folder), "--data", str(data), *limits, *properties]
    return CliRunner().invoke(cli, [*command, *arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, demo_ir: Path, data: Path) -> Path:
    """The demo target, calibrated with groups."""
    copy = Path(shutil.copytree(demo_ir, tmp_path_factory.mktemp("calibrated") / "model"))
    run = calibrate(copy, data, "--ffn-rule", "groups", "--ffn-groups", "4")
    assert run.exit_code == 0, run.output
    assert f"channels of 6 layers written to {copy / CHANNELS_NAME}" in run.stdout
    config = OvspecConfig.load(copy)
    # An amount of channels was not given: the rule is the user's to choose, beside one.
    assert config is not None and config.verify is not None and config.verify.coverage == 0.9
    assert (config.verify.ffn_rule, config.verify.ffn_density) == (None, None)
    config.verify = None  # so that attention stays dense
    config.save(copy)
    return copy


@pytest.fixture(scope="module")
def make(folder: Path) -> Make:
    def pipeline(**settings: Any) -> LLMPipeline:
        return LLMPipeline(folder, "CPU", **{**F32, **settings})

    return pipeline


def answer(pipeline: LLMPipeline) -> tuple[str, ovspec.PerfMetrics]:
    settings = {"num_assistant_tokens": 4} if pipeline.drafts else {}
    results = pipeline.generate([STORY], max_new_tokens=16, **settings)
    return results.texts[0], results.perf_metrics


def test_what_is_written(folder: Path) -> None:
    sets = ChannelSets.load(folder)
    assert sets is not None
    assert [order.shape for order in sets.orders] == [(CHANNELS,)] * 6
    for order, groups in zip(sets.orders, sets.groups, strict=True):
        assert groups.shape == (4, CHANNELS // 4)
        assert np.array_equal(np.sort(order), np.sort(groups.reshape(-1)))


def test_the_first_channels_matter_more_than_the_last(folder: Path) -> None:
    sets, half = ChannelSets.load(folder), SparseVerify(ffn_density=0.5, ffn_rule="static")
    assert sets is not None
    backwards = replace(sets, orders=tuple(order[::-1].copy() for order in sets.orders))
    tokens = np.array(encode(read_tokenizer(folder), STORY, False)[:96], np.int64)
    costs = []
    for found in (sets, backwards):
        runner = ModelRunner(folder, "CPU", AttentionConfig(), F32, ffn=ffn_config(None, half, found))
        costs.append(FidelityMeter(runner, [tokens], 48, 512).measure(half))
    assert costs[0].kl < 0.5 * costs[1].kl and costs[0].loss < costs[1].loss
    assert costs[0].ffn_density == 0.5


@pytest.mark.parametrize("rule", ["static", "groups"])
def test_pipelines_read_their_share_and_say_so(make: Make, folder: Path, rule: Any) -> None:
    half = SparseVerify(ffn_density=0.5, ffn_rule=rule)
    pipeline = make(verify=half)
    text, metrics = answer(pipeline)
    assert metrics.get_ffn_density() == pytest.approx(0.5)
    assert metrics.why_lossy == "sparse verification approximates the model (channels)"
    if rule == "groups":
        pipeline.verify = replace(half, ffn_density=0.75)
        assert answer(pipeline)[1].get_ffn_density() == pytest.approx(0.75)
        with pytest.raises(ValueError, match="'groups' with ffn='native': it needs ffn='stock'"):
            make(verify=half, ffn="native")
    else:
        with pytest.raises(
            ValueError, match=r"density 0.75: this pipeline's graph .*density 0.5; .* ffn='native'"
        ):
            pipeline.verify = replace(half, ffn_density=0.75)
        native = make(verify=half, ffn="native")
        assert answer(native)[0] == text
        native.verify = replace(half, ffn_density=0.75)
        assert answer(native)[1].get_ffn_density() == pytest.approx(0.75)
    draft = ovspec.draft_model(folder / "draft")
    exact, metrics = answer(make(draft_model=draft, verify=CommitVerify(half, 8)))
    assert exact == answer(make(attention="stock"))[0] and metrics.get_num_commits() > 0


def test_other_rules_can_not_be_set_anew(make: Make) -> None:
    static = SparseVerify(ffn_density=0.5, ffn_rule="static")
    with pytest.raises(ValueError, match=r"ffn rule 'static' .*: this pipeline's graph has no limits"):
        make().verify = static
    with pytest.raises(
        ValueError, match="ffn rule 'static': this pipeline's graph has rule 'top_k' of the max"
    ):
        make(verify=SparseVerify(ffn_density=0.5)).verify = static


@pytest.mark.parametrize("rule", ["static", "groups"])
def test_a_target_sets_the_densities(folder: Path, data: Path, tmp_path: Path, rule: str) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "model"))
    run = calibrate(copy, data, "--target-kl", "0.3", "--ffn-rule", rule, "--json")
    assert run.exit_code == 0, run.output
    report = json.loads(run.stdout)
    assert report["channels"] == str(copy / CHANNELS_NAME) and report["joint"]["kl"] <= 0.3
    densities = report["parts"]["channels"]["set"]["ffn_density"]
    assert len(report["channel_densities"]["0.9"]) == 6
    pipeline = LLMPipeline(copy, "CPU", verify="sparse", **F32)
    assert isinstance(pipeline.verify, SparseVerify) and pipeline.verify.ffn_density == tuple(densities)
    assert pipeline.verify.ffn_rule == rule
    expected = np.mean([round(share * 8) / 8 for share in densities] if rule == "groups" else densities)
    assert answer(pipeline)[1].get_ffn_density() == pytest.approx(expected, abs=2e-3)


BAD = {
    "odd number": (
        ["--ffn-rule", "groups", "--ffn-groups", "5"],
        "5 groups of channels: layer .* 1 x 768 of them;",
    ),
    "groups alone": (["--ffn-groups", "4"], "--ffn-groups 4 is for --ffn-rule groups"),
    "score": (
        ["--target-kl", "1", "--ffn-rule", "static", "--ffn-score", "max"],
        "ffn_score='max' with ffn_rule='static', which has none",
    ),
    "no amount": (["--ffn-rule", "top_k"], "ffn_rule='top_k' needs an amount"),
    "threshold": (["--ffn-rule", "static", "--ffn-threshold", "1"], "ffn_rule='static' needs an amount"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_leave_the_folder_as_it_is(folder: Path, data: Path, name: str) -> None:
    arguments, message = BAD[name]
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    run = calibrate(folder, data, *arguments)
    assert isinstance(run.exception, ValueError) and "\n" not in str(run.exception)
    assert re.search(message, str(run.exception))
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
