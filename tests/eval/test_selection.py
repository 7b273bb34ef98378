"""`ovspec eval selection`: exact attention masses beside the lists of the rule."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from prompts import STORY

from ovspec.cli import cli
from ovspec.eval.selection import LayerSelection, exact_masses

SETTINGS = ("--property", "INFERENCE_PRECISION_HINT=f32", "--property", "KV_CACHE_PRECISION=f32")


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 100), st.integers(1, 6), st.integers(0, 9))
def test_masses_are_shares_of_the_softmax(past: int, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    query, keys = rng.standard_normal((rows, 2, 3, 8)), rng.standard_normal((2, past, 8))
    masses = exact_masses(query.astype(np.float32), keys, 32)
    assert masses.shape == (rows, 2, -(-past // 32))
    np.testing.assert_allclose(masses.sum(axis=-1), 1.0, atol=1e-6)
    weights = np.exp(query[0, 1] @ keys[1].T)
    share = (weights[:, :32].sum(axis=1) / weights.sum(axis=1)).mean()
    assert masses[0, 1, 0] == pytest.approx(share, rel=1e-4)


def test_a_layer_is_compared_with_the_best_lists() -> None:
    masses = np.array([[[0.1, 0.6, 0.1, 0.2]], [[0.1, 0.1, 0.1, 0.7]]])
    found = LayerSelection.of(3, np.array([[0, 1, 4, -1, -1]], np.int32), masses)
    assert (found.layer, found.read) == (3, 0.5)
    figures = (found.kept, found.first_row, found.best)
    assert figures == pytest.approx((0.1 + 0.35, 0.35 + 0.45, 0.35 + 0.45))


def ovspec(*arguments: str) -> object:
    run = CliRunner().invoke(cli, ["eval", "selection", *arguments, "--json", "-", *SETTINGS])
    if run.exception and not isinstance(run.exception, SystemExit):
        raise run.exception
    return json.loads(run.stdout)


@pytest.mark.slow
def test_layers_of_the_demo_target(demo_ir: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": STORY * 4}))
    common = (
        "-m",
        str(demo_ir),
        "--prompts",
        str(prompts),
        "--passes",
        "3",
        "--context",
        "600",
        "--json",
        "-",
    )
    found = {rule: ovspec(*common, "--budget", "128", "--selection-rule", rule) for rule in ("mass", "paper")}
    for rule, layers in (("mass", [0, 1, 2, 3, 4, 5]), ("paper", [0, 1, 2])):
        report = found[rule]
        assert isinstance(report, dict)
        assert report["verify"]["rule"] == rule and report["verify"]["selecting_layers"] == layers
        assert [layer["layer"] for layer in report["layers"]] == layers
        assert report["passes"] == 3 and 0.15 < report["density"] < 0.4
        for layer in report["layers"]:
            assert 0 < layer["kept"] <= layer["best"] + 1e-9 and layer["first_row"] <= layer["best"] + 1e-9
    mass, paper = (found[rule]["layers"] for rule in ("mass", "paper"))  # type: ignore[index]
    kept = [sum(layer["kept"] / layer["best"] for layer in layers[:3]) for layers in (mass, paper)]
    assert kept[0] > kept[1], "in the same layers, all rows' attention keeps more than the first row's"
    with pytest.raises(ValueError, match="nothing was selected: every pass reads all of its context"):
        ovspec(*common, "--budget", "5000")
    prompts.write_text(json.dumps({"prompt": STORY * 40}))
    with pytest.raises(ValueError, match=r"line 1 has \d+ tokens, the model 8192 positions; cut texts with"):
        ovspec("-m", str(demo_ir), "--prompts", str(prompts), "--budget", "128")


def test_an_option_without_effect_is_refused(demo_ir: Path) -> None:
    arguments = ["-m", str(demo_ir), "--prompts", "prompts.jsonl", "--max-new-tokens", "4"]
    run = CliRunner().invoke(cli, ["eval", "selection", *arguments])
    assert run.exit_code == 2 and "No such option" in run.output
