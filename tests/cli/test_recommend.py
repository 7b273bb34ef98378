"""`ovspec recommend`: what it measures, what it does not believe, and that its command runs."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from commands import one_line, ovspec

from ovspec.bench.generate import AnswerRecord, GenerateResult, ModeRecord
from ovspec.bench.prompt_file import BenchPrompt
from ovspec.bench.recommend import best_of, recommend_bench, trials_of
from ovspec_models import demo_pair_path

OPTIONS = ("--max-new-tokens", "16", "--property", "INFERENCE_NUM_THREADS=1")
LOOKUPS = ["plain", "lookup:4", "lookup:8", "suffix:4", "suffix:8", "auto"]


@pytest.mark.slow
def test_the_recommended_command_runs(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('"Once upon a time"\n{"prompt": "Tom has a red ball. Lily has"}\n', encoding="utf-8")
    run = ovspec("recommend", demo_pair_path(), *OPTIONS, "--prompts", prompts, "--json")
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    modes = [trial["mode"] for trial in found["trials"]]
    assert modes == [*LOOKUPS, "assistant:2", "assistant:4", "assistant:8"]
    for trial in found["trials"]:
        assert trial["tokens_per_s"] > 0 and trial["tokens_per_pass"] >= 1.0
        assert trial["ratio"]["low"] <= trial["ratio"]["value"] <= trial["ratio"]["high"]
    if found["command"] is None:  # other work disturbed it
        assert found["best"] is None and found["verdict"].startswith("no recommendation: ")
        return
    assert found["best"] in found["trials"] and not found["best"]["noise"]
    words = shlex.split(found["command"])
    assert words[:2] == ["ovspec", "generate"]
    again = ovspec(*words[1:], "-p", "Once upon a time", "--max-new-tokens", "4")
    assert again.returncode == 0 and again.stdout.strip(), again.stderr


def measured(speeds: dict[str, tuple[list[float], int]]) -> GenerateResult:
    """Answers of 11 tokens to one prompt: the speeds of the rounds, and passes; others as plain."""
    bench = recommend_bench(demo_pair_path(), None, [BenchPrompt(0, "all", {"prompt": "a"})], 11, {})
    records = {}
    for mode in bench.modes:
        rounds, passes = speeds.get(mode.name, speeds["plain"])
        answers = [AnswerRecord([1] * 11, 4, 0.1, 10 / speed, passes, 0, 0) for speed in rounds]
        records[mode.name] = ModeRecord(answers[0], answers[0], {0: 0.1}, [answers])
    return GenerateResult(bench, True, records)


def best(speeds: dict[str, tuple[list[float], int]]) -> str | None:
    found = best_of(trials_of(measured(speeds)))
    return None if found is None else found.mode


def test_a_gain_above_the_tokens_of_a_pass_is_not_recommended() -> None:
    """The machine was busy while plain decoding ran: 9.61 times at 3.3 tokens a pass."""
    plain, real = ([10.0, 10.0, 10.0], 10), ([15.0, 16.0, 14.0], 6)
    assert best({"plain": plain, "lookup:8": ([96.1, 96.1, 96.1], 3), "suffix:4": real}) is None
    assert best({"plain": plain, "suffix:4": real}) == "suffix:4"
    assert best({"plain": plain, "suffix:4": ([10.1, 10.2, 10.3], 6)}) == "plain"


def test_ratios_are_of_the_same_round() -> None:
    """The machine becomes ten times slower between two rounds, which says nothing of the mode."""
    plain = ([10.0, 1.0, 1.0], 10)
    assert best({"plain": plain, "auto": ([20.0, 2.0, 2.2], 4)}) == "auto"
    assert best({"plain": plain, "auto": ([20.0, 2.0, 0.9], 4)}) == "plain"


def test_answers_of_one_token_are_no_ground_for_a_verdict() -> None:
    one = AnswerRecord([0], 4, 0.1, 0.0, 0, 0, 0)
    bench = recommend_bench(demo_pair_path(), None, [BenchPrompt(0, "all", {"prompt": "a"})], 11, {})
    records = {mode.name: ModeRecord(one, one, {0: 0.1}, [[one, one]]) for mode in bench.modes}
    with pytest.raises(ValueError, match="every answer to these prompts has one token"):
        trials_of(GenerateResult(bench, True, records))


def test_prompts_exclude_a_prompt(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('"a"\n', encoding="utf-8")
    run = ovspec("recommend", demo_pair_path(), "-p", "a", "--prompts", path)
    assert "--prompts excludes --prompt" in one_line(run)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    assert "no OpenVINO model folder" in one_line(ovspec("recommend", tmp_path))
