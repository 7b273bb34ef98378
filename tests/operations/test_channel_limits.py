"""Limits of feed-forward channels as a user sets them: where they hold, what comes out, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prompts import STORY
from settings import F32

import ovspec
from ovspec import CommitVerify, LLMPipeline, SparseVerify
from ovspec.cli import cli
from ovspec.drafters import SparseSelf

HALF = SparseVerify(ffn_density=0.5)
Make = Callable[..., LLMPipeline]


@pytest.fixture(scope="module")
def make(demo_ir: Path) -> Make:
    def pipeline(draft: bool = False, **settings: Any) -> LLMPipeline:
        who: dict[str, Any] = {"drafter": "none"}
        if draft:
            who = {"drafter": "assistant", "draft_model": ovspec.draft_model(demo_ir / "draft")}
        return LLMPipeline(demo_ir, "CPU", **{**F32, **who, **settings})

    return pipeline


def answer(pipeline: LLMPipeline) -> tuple[str, ovspec.PerfMetrics]:
    settings = {"num_assistant_tokens": 4} if pipeline.drafts else {}
    results = pipeline.generate([STORY], max_new_tokens=24, **settings)
    return results.texts[0], results.perf_metrics


@pytest.fixture(scope="module")
def plain(make: Make) -> str:
    return answer(make(attention="stock"))[0]


@pytest.mark.slow
def test_exact_modes_stay_exact(make: Make, plain: str) -> None:
    assert answer(make(draft=True, ffn="native"))[0] == plain
    for sparse in (HALF, SparseVerify(ffn_density=0.5, budget=64)):
        text, metrics = answer(make(draft=True, verify=CommitVerify(sparse, 8)))
        assert text == plain and metrics.get_num_commits() > 0 and not metrics.why_lossy
        assert 0.5 <= metrics.get_ffn_density() < 1.0
    text, metrics = answer(make(drafter=SparseSelf(HALF)))
    # The verifying passes take all channels, and those alone are counted.
    assert text == plain and metrics.get_ffn_density() == 1.0


def test_sparse_passes_read_their_share_and_say_so(make: Make) -> None:
    pipeline = make(verify=HALF)
    text, metrics = answer(pipeline)
    assert metrics.get_ffn_density() == pytest.approx(0.5)
    assert metrics.get_attention_density() == 1.0
    assert metrics.why_lossy == "sparse verification approximates the model (channels)"
    runner = pipeline.runner
    pipeline.verify = SparseVerify(ffn_density=(0.9, 0.5, 0.5, 0.5, 0.5, 0.9))
    assert answer(pipeline)[1].get_ffn_density() == pytest.approx(3.8 / 6, abs=1e-3)
    pipeline.verify = HALF
    assert answer(pipeline)[0] == text and pipeline.runner is runner


def test_what_does_not_fit_is_refused(make: Make) -> None:
    with pytest.raises(ValueError, match=r"ffn density 0.5 with ffn='stock': only our operation limits"):
        make(verify=HALF, ffn="stock")
    with pytest.raises(ValueError, match="ffn density holds 2 values, expected 6"):
        make(verify=SparseVerify(ffn_density=(0.5, 0.5)))
    with pytest.raises(ValueError, match=r"ffn density 0.5 of verify and 0.25 of the drafter"):
        make(verify=HALF, drafter=SparseSelf(SparseVerify(ffn_density=0.25)))
    with pytest.raises(ValueError, match=r"ffn density 0.5: this pipeline's graph has no"):
        make().verify = HALF
    with pytest.raises(ValueError, match="ffn='gpu': expected 'native' or"):
        make(ffn="gpu")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ffn_density": 0}, "ffn_density=0: expected a share above 0"),
        ({"ffn_density": (0.5, 1.5)}, "ffn_density=1.5: expected a share above 0"),
        ({"ffn_density": ()}, r"ffn_density=\(\): expected one number, or one per layer"),
        ({"ffn_density": True}, "ffn_density=True: expected a share above 0"),
        ({"ffn_density": "0.5"}, "ffn_density='0.5': expected a share above 0"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        SparseVerify(**settings)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_commands(demo_ir: Path, tmp_path: Path) -> None:
    properties = [f"--property={name}={value}" for name, value in F32.items()]
    command = ["generate", "-m", str(demo_ir), "-p", STORY, "--max-new-tokens", "4", *properties]
    limits = ["--verify", "sparse", "--ffn-density", "0.5"]
    run = CliRunner().invoke(cli, [*command, *limits, "--drafter", "none"])
    assert run.exit_code == 0, run.output
    assert "ffn density 0.50" in run.stderr and "LOSSY" in run.stderr
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps(STORY), encoding="utf-8")
    evaluate = ["eval", "fidelity", "-m", str(demo_ir), "--prompts", str(prompts), "--max-new-tokens", "8"]
    sweep = ["--ffn-densities", "0.5,0.9", "--drafter", "prompt_lookup", "--json", "-"]
    run = CliRunner().invoke(cli, [*evaluate, *sweep, *properties])
    assert run.exit_code == 0, run.output
    settings = json.loads(run.stdout)["settings"]
    assert [setting["name"] for setting in settings] == ["ffn 0.5", "ffn 0.9"]
    assert settings[0]["ffn_density"] < settings[1]["ffn_density"] < 1.0
    assert settings[0]["kl"]["mean"] > settings[1]["kl"]["mean"]
