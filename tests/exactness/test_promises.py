"""What breaks the promise of identical output is named, with its remedy, and is not called lossy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from commands import one_line, ovspec
from transforms.ffn_models import tiny_dense
from transforms.moe_models import LAYERS, tiny_moe

from ovspec.cli import cli
from ovspec.operations.attention_config import AttentionConfig
from ovspec.operations.expert_budgets import ExpertConfig
from ovspec.proofs.promises import promises
from ovspec.runner.model_runner import ModelRunner

EXPERTS = f"the experts of {LAYERS} layers are OpenVINO's"


def remedies(runner: ModelRunner) -> list[str]:
    return [reason.rpartition("; ")[2] for reason in runner.identity_breakers]


def test_stock_linear_layers_and_keys_by_channel() -> None:
    by_channel = {"KV_CACHE_PRECISION": "u8", "KEY_CACHE_QUANT_MODE": "BY_CHANNEL"}
    runner = ModelRunner(tiny_dense("int8"), properties=by_channel, linear="stock")
    assert remedies(runner) == ["use linear='native'", "use KEY_CACHE_QUANT_MODE=BY_TOKEN"]
    assert ModelRunner(tiny_dense("int8")).identity_breakers == ()


def test_experts_have_a_remedy_of_their_own() -> None:
    stock = ModelRunner(tiny_moe(), experts=ExpertConfig("stock"))
    assert [reason.startswith(EXPERTS) for reason in stock.identity_breakers] == [True]
    assert remedies(stock) == ["use experts='native'"]
    assert ModelRunner(tiny_moe(), experts=ExpertConfig("native")).identity_breakers == ()


def test_all_stock_names_all_causes() -> None:
    runner = ModelRunner(
        tiny_moe(), attention=AttentionConfig("stock"), experts=ExpertConfig("stock"), linear="stock"
    )
    assert remedies(runner) == ["use attention='native'", "use linear='native'", "use experts='native'"]


@pytest.mark.parametrize("model", ["demo", "mixture"])
def test_a_folder_is_told_what_loading_it_says(model: str, demo_ir: Path, moe_ir: Path) -> None:
    folder = demo_ir if model == "demo" else moe_ir
    told = promises(folder)
    assert told["default"] == []
    chosen: dict[str, dict[str, Any]] = {
        "linear='stock'": {"linear": "stock", "experts": ExpertConfig("native", optional=True)},
        "attention='stock'": {
            "attention": AttentionConfig("stock"),
            "experts": ExpertConfig("stock", optional=True),
        },
    }
    for name, options in chosen.items():
        assert told[name] == list(ModelRunner(folder, **options).identity_breakers) != []


def test_info_tells_it(moe_ir: Path) -> None:
    run = CliRunner().invoke(cli, ["info", str(moe_ir), "--json"])
    assert json.loads(run.output)["identical_output"] == promises(moe_ir)
    table = " ".join(CliRunner().invoke(cli, ["info", str(moe_ir)]).output.split())
    assert "default │ promised" in table and "use experts='native'" in table


@pytest.mark.slow
def test_plain_decoding_with_stock_operations_is_not_called_lossy(demo_ir: Path) -> None:
    """The output is the model's own; with drafts or other requests it may differ, which is reported."""
    common = ("generate", "-m", demo_ir, "-p", "Once", "--max-new-tokens", "4", "--attention", "stock")
    plain = ovspec(*common, "--drafter", "none", "--json")
    report = json.loads(plain.stdout)
    assert report["lossless"] is True and report["identity_promised"] is False
    assert report["metrics"]["why_lossy"] is None and report["metrics"]["identity_breakers"]
    drafted = json.loads(ovspec(*common, "--num-assistant-tokens", "3", "--json").stdout)
    assert drafted["lossless"] is False and drafted["metrics"]["why_lossy"] is None
    shown = ovspec(*common, "--drafter", "none").stderr
    assert "identity not promised: attention='stock'" in shown and "LOSSY" not in shown


def test_defaults_promise_identity(demo_ir: Path) -> None:
    run = ovspec("generate", "-m", demo_ir, "-p", "Once", "--max-new-tokens", "4", "--json")
    report = json.loads(run.stdout)
    assert report["lossless"] is True and report["identity_promised"] is True


def test_a_property_without_a_model_is_refused() -> None:
    assert "--property A=1 is for a model" in one_line(ovspec("info", "--self-check", "--property", "A=1"))
