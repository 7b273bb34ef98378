"""`ovspec eval tasks` on the demo pair: its figures, its settings, and what it refuses."""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import one_line, ovspec
from prompts import STORY
from settings import F32

import ovspec as package
from ovspec.eval.divergence import Decision
from ovspec.eval.interval import Interval
from ovspec.eval.scoring import Scorer
from ovspec.eval.setting import Setting
from ovspec.eval.suites import Example
from ovspec.eval.task_results import Answer, Pair, Run
from ovspec.eval.task_settings import NAMES, NamedSetting, Parts
from ovspec.eval.tasks import TasksEval
from ovspec.eval.tasks_report import TasksReport
from ovspec.generation.inputs import tokenized
from ovspec.generation.metrics import PerfMetrics
from ovspec.modes.sparse_prefill import SparsePrefill
from ovspec_models import ModelInfo, OvspecConfig, SparseVerify, demo_pair_path

PROPERTIES = [word for name, value in F32.items() for word in ("--property", f"{name}={value}")]
TEXT = STORY * 2
# An answer would end there; a reference does not.
EOS = "<|endoftext|>"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    tasks: list[dict[str, Any]] = [
        {
            "prompt": f"{TEXT}\nThe end of the story is:",
            "reference": f"They were{EOS * 8} happy.",
            "category": "ends",
        },
        {"prompt": f"{TEXT[:600]}\nShe said", "answers": ["no", "yes"], "category": "words"},
        {"prompt": f"{TEXT}\nShe said", "answers": ["no", "yes"], "category": "words"},
        {"prompt": TEXT, "category": "more"},
    ]
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps(task) + "\n" for task in tasks), encoding="utf-8")
    return path


def measured(demo_ir: Path, *arguments: str | Path) -> dict[str, Any]:
    done = ovspec("eval", "tasks", "-m", demo_ir, *arguments, *PROPERTIES, "--json", "-")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_figures_of_the_demo_target(demo_ir: Path, suite: Path) -> None:
    amounts = ("--budget", "64", "--ffn-density", "0.3", "--max-new-tokens", "12", "--prefill-coverage", "1")
    report = measured(demo_ir, "--suite", suite, *amounts)
    assert report["left_out"] == ["experts is left out: the model has no layers with experts of a known form"]
    found = {setting["name"]: setting for setting in report["settings"]}
    assert list(found) == ["attention", "channels", "all", "prompts"]
    for name, (context, channels) in {
        "attention": (0.5, 1.0),
        "channels": (1.0, 0.3),
        "all": (0.5, 0.3),
        "prompts": (1.0, 1.0),
    }.items():
        total = found[name]["tasks"]["all tasks"]
        assert total["examples"] == 4
        assert total["attention_density"] == 1.0 if context == 1.0 else total["attention_density"] < context
        assert total["ffn_density"] == pytest.approx(channels, abs=0.02)
        # What is not approximated is exact, as prompts are that read all of their context.
        exact = name == "prompts"
        prompts = {"mode": "sparse", "L0": None, "rho": None, "coverage": 1.0}
        assert found[name]["prefill"] == (prompts if name == "prompts" else "dense")
        assert (total["kl"]["value"] < 1e-9) == exact == (total["same_outputs"] == 4)
        assert total["kl"]["low"] <= total["kl"]["value"] <= total["kl"]["high"]
    words = found["all"]["tasks"]["words"]
    assert [score["metric"] for score in words["scores"]] == ["exact_match", "f1"]
    assert found["all"]["tasks"]["more"]["nll_dense"] is None
    ends, first, *_ = found["channels"]["examples"]
    for score in words["scores"]:
        gained = score["tested"]["value"] - score["dense"]["value"]
        assert score["difference"]["value"] == pytest.approx(gained)
    assert first["setting"]["num_generated_tokens"] <= 12 and first["kl"] != []
    # The likelihood of the reference is that of a scorer of the dense model.
    pipeline = package.LLMPipeline(demo_ir, "CPU", **F32)
    tokenizer = pipeline.get_tokenizer()
    prompt = pipeline.chat_prompts.encode(f"{TEXT}\nThe end of the story is:", True)
    reference = tokenized(tokenizer, f" They were{EOS * 8} happy.", special_tokens=False)
    expected, _ = Scorer(pipeline).score(prompt, reference)
    assert ends["nll_dense"] == pytest.approx(-expected, rel=1e-5)
    assert ends["nll_setting"] != pytest.approx(-expected, rel=1e-5)
    assert len(ends["kl"]) == len(reference) and ends["num_input_tokens"] == len(prompt)


@pytest.mark.slow
def test_needles_and_cut_prompts_in_tables(demo_ir: Path, suite: Path, tmp_path: Path) -> None:
    filler = tmp_path / "filler.txt"
    filler.write_text("Nothing happens here. " * 3, encoding="utf-8")
    words = ("--setting", "attention", "--budget", "32", "--max-new-tokens", "2", "--context", "120")
    more = ("--limit", "5", "--needles", "150", "--filler", filler, "--json", tmp_path / "report.json")
    done = ovspec("eval", "tasks", "-m", demo_ir, "--suite", suite, *words, *more, *PROPERTIES)
    assert done.returncode == 0, done.stderr
    assert "needle 150" in done.stdout and "depth 0.75" in done.stdout
    assert "attention: budget 32" in done.stdout and "cut in their middle to 120" in done.stdout
    assert "more: 1 of 1 examples have no score" in done.stdout and "can't do this" not in done.stdout
    (setting,) = json.loads((tmp_path / "report.json").read_text())["settings"]
    assert len(setting["examples"]) == 4 + 5
    assert max(example["num_input_tokens"] for example in setting["examples"]) == 120


def scored(scores: list[float], unscored: int = 0) -> TasksReport:
    """A report on as many examples, answered alike by both."""
    pairs = []
    for score in [*scores, *[None] * unscored]:
        answer = Answer("", [1], () if score is None else (score,), 0.0, 0.1, PerfMetrics())
        example = Example("", "sums", "", () if score is None else ("number",))
        pairs.append(Pair(example, 2, answer, answer, [Decision(0.0, True, 1.0)], False))
    run = Run(NamedSetting("attention", Setting(SparseVerify())), "", "", pairs)
    return TasksReport(ModelInfo.read(demo_pair_path()), None, None, [run], [])


@pytest.mark.parametrize(
    ("scores", "cannot"), [([0.0], False), ([0.0] * 10, False), ([0.0] * 40, True), ([0.05], False)]
)
def test_few_examples_do_not_show_what_a_model_cannot_do(scores: list[float], cannot: bool) -> None:
    assert any("can't do this task" in note for note in scored(scores).notes()) == cannot


def test_the_interval_of_equal_scores_is_not_empty() -> None:
    (score,) = scored([1.0] * 5).runs[0].scores("sums")
    assert score.dense == Interval.of_share(5, 5) and score.dense.low < 0.6
    (score,) = scored([0.5, 0.25]).runs[0].scores("sums")
    assert score.dense == Interval.of_mean([0.5, 0.25])


def test_examples_without_a_score_are_counted() -> None:
    assert "sums: 2 of 3 examples have no score" in " ".join(scored([1.0], unscored=2).notes())
    report = scored([], unscored=1)
    assert "scores, with" not in " ".join(str(table.title) for table in report.tables())


@pytest.mark.slow
def test_memory_holds_two_pipelines_at_a_time(demo_ir: Path) -> None:
    live, most = weakref.WeakSet[package.LLMPipeline](), 0

    def make_pipeline(setting: Setting) -> package.LLMPipeline:
        nonlocal most
        gc.collect()
        made = package.LLMPipeline(demo_ir, "CPU", verify=setting.verify, **F32)
        live.add(made)
        most = max(most, len(live))
        return made

    settings = [NamedSetting(str(budget), Setting(SparseVerify(budget=budget))) for budget in (64, 96)]
    examples = [Example("the story", "story", STORY)]
    report = TasksEval(demo_ir, make_pipeline, settings, examples, max_new_tokens=2).run(lambda step: None)
    assert len(report.runs) == 2 and most == 2


def parts(given: SparseVerify, found: SparseVerify | None, experts: bool, channels: bool) -> Parts:
    config = OvspecConfig.load(demo_pair_path())
    assert config is not None
    return Parts(given, SparsePrefill(), replace(config, verify=found), experts, channels)


def test_what_each_setting_limits() -> None:
    calibrated = SparseVerify(budget=100, expert_budget=7, ffn_density=0.4)
    for given, found in ((calibrated, None), (SparseVerify(), calibrated)):
        settings, left_out = parts(given, found, True, True).settings(None)
        assert [one.name for one in settings] == list(NAMES) and not left_out
        for one, limited in zip(settings, ("attention", "experts", "channels", "all"), strict=False):
            sparse = one.setting.sparse
            assert sparse is not None and one.setting.prefill is None
            dense = sparse.budget_blocks(1000, 32) < 0
            assert dense == (limited not in ("attention", "all"))
            assert sparse.limits_experts == (limited in ("experts", "all"))
            assert sparse.limits_channels == (limited in ("channels", "all"))
        assert settings[-1].setting.verify == "dense" and settings[-1].setting.prefill == SparsePrefill()
    settings, left_out = parts(SparseVerify(), None, True, False).settings(None)
    assert [one.name for one in settings] == ["attention", "prompts"]
    assert left_out[0] == "experts is left out: no --expert-budget is given, and none is calibrated"
    assert left_out[2].startswith("all is left out: it would be attention alone, because no --expert-budget")
    both, _ = parts(SparseVerify(ffn_density=0.5), None, False, True).settings(["all"])
    sparse = both[0].setting.sparse
    assert sparse is not None and sparse.limits_attention and not sparse.limits_experts
    assert np.isclose(sparse.budget_tokens(1512), 512 + 100)


BAD: dict[str, tuple[tuple[str, ...], str]] = {
    "nothing": ((), "there is nothing to ask; give --suite FILE, or --needles LENGTHS"),
    "filler": (("--suite", "{suite}", "--filler", "x"), "--filler x needs --needles"),
    "no filler": (("--needles", "200", "--filler", "none.txt"), "--filler none.txt: No such file"),
    "needles": (("--needles", "1k"), "--needles '1k': expected whole numbers"),
    "short needles": (("--needles", "200,50"), "--needles 50: the question and the first sentence"),
    "needles twice": (("--needles", "200,300,200"), "--needles 200,300,200: name each length once"),
    "long needles": (("--needles", "60000"), "needle of 60000 tokens at depth 0: the prompt has"),
    "one token": (("--suite", "{suite}", "--context", "1"), "the prompt has 1 tokens, expected at least 2"),
    "setting": (("--suite", "{suite}", "--setting", "attention,dense"), "'dense' is not one of attention"),
    "twice": (("--suite", "{suite}", "--setting", "all,all"), "name each setting once"),
    "no experts": (("--suite", "{suite}", "--setting", "experts"), "--setting experts: the model has no"),
    "no share": (
        ("--suite", "{suite}", "--setting", "channels"),
        "--setting channels: no --ffn-density is given, and none is calibrated",
    ),
    "experts": (("--suite", "{suite}", "--expert-budget", "4"), "an amount of experts is given, and the"),
    "unused": (
        ("--suite", "{suite}", "--setting", "prompts", "--budget", "64"),
        "an amount of attention is given, and --setting prompts has no use for it",
    ),
    "unused prompts": (
        ("--suite", "{suite}", "--setting", "attention", "--prefill-rho", "0.2"),
        "an amount of prompts is given, and --setting attention has no use for it",
    ),
    "stock": (
        ("--suite", "{suite}", "--attention", "stock", "--setting", "prompts"),
        "--setting prompts: sparse prompts need --attention native",
    ),
    "chat": (("--suite", "{chat}"), "has messages, and the model no chat template"),
    "long answers": (("--suite", "{suite}", "--max-new-tokens", "9000"), "give a smaller --max-new-tokens"),
    "damaged": (("--suite", "{damaged}"), "line 1 is no JSON"),
    "json": (("--suite", "{suite}", "--json", "missing/f.json"), "--json missing/f.json: the folder"),
}


@pytest.mark.parametrize("name", BAD)
def test_refused_with_one_line(demo_ir: Path, suite: Path, tmp_path: Path, name: str) -> None:
    arguments, expected = BAD[name]
    chat, damaged = tmp_path / "chat.jsonl", tmp_path / "damaged.jsonl"
    chat.write_text('{"messages": [{"role": "user", "content": "Hello"}]}', encoding="utf-8")
    damaged.write_text('{"prompt": ', encoding="utf-8")
    places = {"suite": suite, "chat": chat, "damaged": damaged}
    words = [argument.format(**places) for argument in arguments]
    assert expected in one_line(ovspec("eval", "tasks", "-m", demo_ir, *words, cwd=tmp_path))
