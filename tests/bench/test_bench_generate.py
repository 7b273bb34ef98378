"""`ovspec bench generate`: real processes on the demo model, and what is refused before one starts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from commands import one_line, ovspec

from ovspec.bench.generate import AnswerRecord, GenerateBench, GenerateResult, ModeRecord
from ovspec.bench.generate_modes import Mode
from ovspec.bench.generate_plot import plot_generate
from ovspec.bench.generate_report import GenerateReport
from ovspec.bench.prompt_file import BenchPrompt, read_prompt_file
from ovspec.cli import cli
from ovspec_models import demo_pair_path

LINES = (
    {"prompt": "Lily has a red ball. Tom has a blue hat. Lily has a", "kind": "story"},
    {"prompt": "One, two, three, jump! One, two,", "kind": "song"},
    {"prompt": "The old man opened the door and", "kind": "story"},
)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, LINES)), encoding="utf-8")
    return path


@pytest.mark.slow
def test_every_mode_answers_in_a_process_of_its_own(
    prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy answers are plain decoding's; a mode can name another Python, here ours under a script.

    A checkout in the current folder does not take the place of the installed version.
    """
    (tmp_path / "ovspec").mkdir()
    (tmp_path / "ovspec" / "__init__.py").write_text("raise ImportError", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nOVSPEC_SEEN=1 exec {sys.executable} "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    picture = tmp_path / "speed.png"
    modes = f"genai,genai_lookup:3,plain,suffix:4,commit+lookup@{script}"
    arguments = [
        "-m",
        str(demo_pair_path()),
        "--prompts",
        str(prompts),
        "--category",
        "kind",
        "--mode",
        modes,
    ]
    arguments += ["--draft-model", "none", "--max-new-tokens", "24", "--json", "-", "--plot", str(picture)]
    arguments += ["--property", "INFERENCE_PRECISION_HINT=f32"]
    result = CliRunner().invoke(cli, ["bench", "generate", *arguments], catch_exceptions=False)
    assert result.exit_code == 0 and picture.stat().st_size
    found = json.loads(result.stdout)
    assert found["interleaved"] and list(found["modes"]) == modes.split(",")
    for name, mode in found["modes"].items():
        assert list(mode["categories"]) == ["story", "song"]
        assert all(figures["tokens_per_s"] > 0 for figures in mode["categories"].values())
        assert mode["first_token_ms"] > 0 and mode["fresh"] > 0
        assert [answer["line"] for answer in mode["answers"]] == [1, 2, 3]
        if not name.startswith("genai"):
            assert mode["same_as_plain"] == [3, 3]
    assert found["modes"]["plain"]["tokens_per_pass"] == 1.0
    drafted = found["modes"]["suffix:4"]
    assert drafted["tokens_per_pass"] > 1.0 and 0 < drafted["acceptance"] <= 1


def answer(tokens: int, seconds: float) -> AnswerRecord:
    return AnswerRecord(list(range(1 + tokens)), 9, 0.1, seconds, tokens, 0, 0)


def test_speeds_are_of_whole_categories() -> None:
    """An answer of few tokens weighs little, one of one token nothing; of rounds the median counts."""
    prompts = [BenchPrompt(1, "a", {}), BenchPrompt(2, "a", {}), BenchPrompt(3, "b", {})]
    modes = tuple(Mode.of(name, None, {}) for name in ("genai", "genai_sdpa", "plain", "suffix:2"))
    bench = GenerateBench(Path(), modes, prompts)
    records = {}
    for name, factor in (("genai", 3.0), ("genai_sdpa", 2.0), ("plain", 1.0), ("suffix:2", 0.5)):
        rounds = [answer(100, factor), answer(100, 9 * factor), answer(100, factor)]
        answers = [rounds, 3 * [answer(0, 5.0)], 3 * [answer(10, factor)]]
        records[name] = ModeRecord(answer(64, 2.0), answer(64, 1.0), {1: 0.1}, answers)
    report = GenerateReport(GenerateResult(bench, True, records))
    assert report.speed("plain", "a") == 100.0 and report.speed("plain", "b") == 10.0
    bases = report.bases()
    assert bases == {"plain": ["plain"], "GenAI's best plain": ["genai", "genai_sdpa"]}
    ratios = [report.ratio("suffix:2", base, "a") for base in bases.values()]
    assert [ratio.value for ratio in ratios if ratio] == [2.0, 4.0]


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("sufix", "--mode sufix: expected some of default, plain, lookup"),
        ("suffix:99", "'99' draft tokens; expected a number from 1 to 63"),
        ("plain:4", "--mode plain:4: expected some of"),
        ("commit+genai", "--mode commit+genai: expected some of"),
        ("assistant", "needs a draft model: give --draft-model DIR"),
        ("plain@no-such-python", "'no-such-python' can't be run"),
        ("plain,plain", "expected each once"),
    ],
)
def test_modes_that_are_refused(mode: str, said: str, prompts: Path) -> None:
    run = ovspec(
        *("bench", "generate", "-m", demo_pair_path(), "--prompts", prompts, "--mode", mode),
        *("--draft-model", "none"),
    )
    assert run.returncode == 2 and said in one_line(run)


@pytest.mark.slow
def test_a_mode_that_fails_is_named(prompts: Path) -> None:
    options = ("--property", "INFERENCE_NUM_THREADS=many")
    run = ovspec(
        "bench", "generate", "-m", demo_pair_path(), "--prompts", prompts, "--mode", "plain", *options
    )
    assert "mode plain failed in a process of its own: " in one_line(run)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{}", "line 2 holds no prompt: {}"),
        ('{"messages": [{"role": "user"}]}', "line 2 holds no prompt"),
        ('{"prompt": "Hi"}', "line 2 has no field 'kind', which --category names"),
        ("{", "line 2 is no JSON"),
    ],
)
def test_prompts_that_are_refused(line: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "Hi", "kind": "a"}\n' + line, encoding="utf-8")
    with pytest.raises(ValueError, match=r"prompts\.jsonl") as refused:
        read_prompt_file(path, "kind")
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"messages": [{"role": "user", "content": "Hi"}]}, "has messages, and the model no chat template"),
        ({"prompt": 9000 * "word "}, "tokens, the model 8192 positions; shorten it or leave it out"),
    ],
)
@pytest.mark.parametrize(
    "command",
    [
        ("generate", "--mode", "plain"),
        ("trace", "--offers", "-o", "trace.json"),
        ("trace", "--drafter", "suffix", "-o", "trace.json"),
    ],
)
def test_a_prompt_that_the_model_cannot_answer_is_named_before_the_first_answer(
    prompts: Path, tmp_path: Path, body: dict[str, Any], said: str, command: tuple[str, ...]
) -> None:
    if "suffix" in command and "messages" in body:
        pytest.skip("its prompts are texts")
    prompts.write_text(f'"Hi"\n\n{json.dumps(body)}\n', encoding="utf-8")
    name, *options = command
    run = ovspec("bench", name, "-m", demo_pair_path(), "--prompts", prompts, *options, cwd=tmp_path)
    error = one_line(run)
    assert error.startswith("ovspec: error: the prompt in line 3 has ") and said in error


def test_answers_of_one_token_have_no_speed(tmp_path: Path) -> None:
    """The demo model ends a text that has ended; what is not measured is missing, and not 0."""
    prompts, figures = tmp_path / "prompts.jsonl", tmp_path / "figures.json"
    lines = [{"prompt": "The end.", "kind": 0}, {"prompt": "Once upon a time", "kind": 1}]
    prompts.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    options = ("--category", "kind", "--mode", "plain,lookup:4", "--max-new-tokens", "8", "--json", figures)
    picture = tmp_path / "figures.svg"
    run = ovspec(
        "bench", "generate", "-m", demo_pair_path(), "--prompts", prompts, *options, "--plot", picture
    )
    assert run.returncode == 0, run.stderr
    assert picture.stat().st_size
    for mode in json.loads(figures.read_text(encoding="utf-8"))["modes"].values():
        assert mode["categories"]["0"] == {"tokens_per_s": None, "ratios": {"plain": None}}
        assert mode["categories"]["1"]["tokens_per_s"] > 0 and mode["fresh"] is None
        assert mode["categories"]["1"]["ratios"]["plain"]["value"] > 0
        assert [len(found["rounds"][0]["tokens"]) == 1 for found in mode["answers"]] == [True, False]
        assert mode["answers"][0]["rounds"][0]["decode_s"] == 0.0


def test_ratios_leave_out_answers_of_one_token() -> None:
    """Where resampled prompts were all of these, an interval would reach down to 0."""
    prompts = [BenchPrompt(line, "a", {}) for line in (1, 2)]
    modes = tuple(Mode.of(name, None, {}) for name in ("plain", "suffix:2"))
    answers = {
        "plain": [[answer(10, 1.0)], [answer(0, 0.0)]],
        "suffix:2": [[answer(10, 0.5)], [answer(0, 0.0)]],
    }
    records = {name: ModeRecord(found[0][0], found[0][0], {}, found) for name, found in answers.items()}
    report = GenerateReport(GenerateResult(GenerateBench(Path(), modes, prompts), True, records))
    ratio = report.ratio("suffix:2", ["plain"], "a")
    own = report.ratio("plain", ["plain"], "a")
    assert own is not None and own.low == own.value == own.high == 1.0
    assert ratio is not None and (ratio.low, ratio.value, ratio.high) == (2.0, 2.0, 2.0)


def test_the_title_of_a_picture_is_not_cut_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One category makes a narrow picture, and a title has the names of model and processor."""
    figures: list[Any] = []
    monkeypatch.setattr("ovspec.bench.generate_plot.save_figure", lambda figure, path: figures.append(figure))
    modes = tuple(Mode.of(name, None, {}) for name in ("plain", "suffix:2"))
    records = {
        mode.name: ModeRecord(answer(9, 1.0), answer(9, 1.0), {}, [[answer(9, 1.0)]]) for mode in modes
    }
    folder = tmp_path / "a-model-with-a-long-name-in-int4-that-a-user-has-exported"
    bench = GenerateBench(folder, modes, [BenchPrompt(1, "all", {})])
    plot_generate(GenerateReport(GenerateResult(bench, True, records)), tmp_path / "picture.png")
    (figure,) = figures
    figure.draw_without_rendering()
    (title,) = figure.texts
    extent = title.get_window_extent()
    assert 0 <= extent.x0 < extent.x1 <= figure.bbox.width


def test_prompts_by_category(prompts: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi", "name": "x"}], "kind": "chat"}
    prompts.write_text(prompts.read_text(encoding="utf-8") + "\n" + json.dumps(chat), encoding="utf-8")
    found = read_prompt_file(prompts, "kind", limit=1)
    assert [(prompt.line, prompt.category) for prompt in found] == [(1, "story"), (2, "song"), (4, "chat")]
    assert found[2].body == {"messages": [{"role": "user", "content": "Hi"}]}
    assert [prompt.category for prompt in read_prompt_file(prompts)] == 4 * ["all"]
    prompts.write_text('{"prompt": "Hi", "kind": 0}', encoding="utf-8")
    assert [prompt.category for prompt in read_prompt_file(prompts, "kind")] == ["0"]
