"""`ovspec recommend`: what it measures, and that what it recommends is a command that runs."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from commands import one_line, ovspec

from ovspec_models import demo_pair_path

OPTIONS = ("--max-new-tokens", "16", "--property", "INFERENCE_NUM_THREADS=1")


@pytest.mark.slow
def test_the_recommended_command_runs() -> None:
    run = ovspec("recommend", demo_pair_path(), *OPTIONS, "--json")
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    settings = [(trial["drafter"], trial["num_assistant_tokens"]) for trial in found["trials"]]
    drafters = ("assistant", "prompt_lookup", "suffix")
    assert settings == [("none", 0), *((name, length) for name in drafters for length in (2, 4, 6))]
    assert all(trial["tokens_per_s"] > 0 for trial in found["trials"])
    plain, fastest = found["trials"][0], max(trial["tokens_per_s"] for trial in found["trials"])
    assert found["best"] in found["trials"]
    assert found["best"]["tokens_per_s"] in (fastest, plain["tokens_per_s"])
    words = shlex.split(found["command"])
    assert words[:2] == ["ovspec", "generate"]
    again = ovspec(*words[1:], "-p", "Once upon a time", "--max-new-tokens", "4")
    assert again.returncode == 0 and again.stdout.strip(), again.stderr


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    assert "no OpenVINO model folder" in one_line(ovspec("recommend", tmp_path))
