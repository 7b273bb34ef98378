"""`ovspec recommend`: what it measures, what it does not believe, and that its command runs."""

from __future__ import annotations

import json
import shlex
import weakref
from pathlib import Path

import pytest
from commands import one_line, ovspec

from ovspec.bench.recommend import LENGTHS, TURNS, RecommendBench, Run, Trial, best_of, measured, take_turns
from ovspec_models import demo_pair_path

OPTIONS = ("--max-new-tokens", "16", "--property", "INFERENCE_NUM_THREADS=1")


@pytest.mark.slow
def test_the_recommended_command_runs() -> None:
    run = ovspec("recommend", demo_pair_path(), *OPTIONS, "--json")
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    settings = [(trial["drafter"], trial["num_assistant_tokens"]) for trial in found["trials"]]
    drafters = ("assistant", "prompt_lookup", "suffix")
    assert settings == [("none", 0), *((name, length) for name in drafters for length in LENGTHS)]
    for trial in found["trials"]:
        assert trial["tokens_per_s"] > 0 and trial["turns"] >= TURNS
        assert trial["ratio"]["min"] <= trial["ratio"]["median"] <= trial["ratio"]["max"]
        assert 1.0 <= trial["tokens_per_round"] <= trial["mean_acceptance_length"] + 1e-9
    if found["command"] is None:  # other work disturbed it
        assert found["best"] is None and found["verdict"].startswith("no recommendation: ")
        return
    assert found["best"] in found["trials"] and not found["best"]["noise"]
    words = shlex.split(found["command"])
    assert words[:2] == ["ovspec", "generate"]
    again = ovspec(*words[1:], "-p", "Once upon a time", "--max-new-tokens", "4")
    assert again.returncode == 0 and again.stdout.strip(), again.stderr


def trial(name: str, speeds: list[float], plain: list[float], tokens_per_round: float) -> Trial:
    runs = [Run(speed, tokens_per_round, tokens_per_round) for speed in speeds]
    return Trial.of(name, 4, runs, [Run(speed, 1.0, 1.0) for speed in plain])


PLAIN = Trial.of("none", 0, [Run(10.0, 1.0, 1.0)], [Run(10.0, 1.0, 1.0)])


def test_a_gain_above_the_acceptance_length_is_not_recommended() -> None:
    """The machine was busy while plain decoding ran: 9.61 times at 3.38 tokens a round."""
    noise = trial("assistant", [96.1, 96.1, 96.1], [10.0, 10.0, 10.0], 3.38)
    real = trial("suffix", [15.0, 16.0, 14.0], [10.0, 10.0, 10.0], 1.7)
    assert noise.is_noise and not real.is_noise
    assert best_of([PLAIN, noise, real]) is None
    assert best_of([PLAIN, real]) is real
    answers = [[noise], [real]]
    assert measured(lambda: answers.pop(0)) == [real]
    answers = [[real], [noise]]
    assert measured(lambda: answers.pop(0)) == [real] and answers


def test_ratios_are_of_the_same_turn() -> None:
    """The machine becomes ten times slower between two turns, which says nothing of the setting."""
    slower = trial("assistant", [20.0, 2.0, 2.2], [10.0, 1.0, 1.0], 2.5)
    assert slower.ratio.median == 2.0 and best_of([PLAIN, slower]) is slower
    unsteady = trial("assistant", [20.0, 2.0, 0.9], [10.0, 1.0, 1.0], 2.5)
    assert best_of([PLAIN, unsteady]) is PLAIN
    order: list[int] = []

    def generate(length: int) -> Run:
        order.append(length)
        return Run(1.0, 1.0, 1.0)

    runs = take_turns((0, 2, 4), 2, generate)
    assert order == [0, 2, 4, 2, 4, 0] and all(len(found) == 2 for found in runs.values())


class Idle:
    def generate(self, length: int, max_new_tokens: int) -> Run:
        return Run(1.0, 1.0, 1.0)


def test_models_are_loaded_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of them at once may be more than the memory holds."""
    loaded: list[weakref.ref[Idle]] = []

    def load(bench: RecommendBench, drafter: str) -> Idle:
        assert not any(one() for one in loaded)
        player = Idle()
        loaded.append(weakref.ref(player))
        return player

    monkeypatch.setattr(RecommendBench, "_player", load)
    bench = RecommendBench(demo_pair_path(), None, ("prompt_lookup", "suffix"), "Once", 16)
    assert len(bench.run()) == 1 + 2 * len(LENGTHS) and len(loaded) == 2


def test_a_prompt_without_room_for_the_answer_is_refused() -> None:
    run = ovspec("recommend", demo_pair_path(), "-p", "dog " * 8190)
    assert "leaves positions for" in one_line(run)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    assert "no OpenVINO model folder" in one_line(ovspec("recommend", tmp_path))
