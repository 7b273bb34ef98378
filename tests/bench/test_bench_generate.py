"""`ovspec bench generate`: real processes on the demo model, and what is refused before one starts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from commands import one_line, ovspec

from ovspec.bench.generate import AnswerRecord, GenerateBench, GenerateResult, ModeRecord
from ovspec.bench.generate_modes import Mode
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
    assert [report.ratio("suffix:2", base, "a").value for base in bases.values()] == [2.0, 4.0]


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


def test_prompts_by_category(prompts: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi", "name": "x"}], "kind": "chat"}
    prompts.write_text(prompts.read_text(encoding="utf-8") + "\n" + json.dumps(chat), encoding="utf-8")
    found = read_prompt_file(prompts, "kind", limit=1)
    assert [(prompt.line, prompt.category) for prompt in found] == [(1, "story"), (2, "song"), (4, "chat")]
    assert found[2].body == {"messages": [{"role": "user", "content": "Hi"}]}
    assert [prompt.category for prompt in read_prompt_file(prompts)] == 4 * ["all"]
