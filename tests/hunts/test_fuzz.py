"""The hunts find what is planted, say how to find it again, and go on behind a crash."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

FUZZ = Path(__file__).with_name("fuzz.py")
_PLANTED = """
import os, sys
sys.path[:0] = [{tests!r}]
sys.argv[0] = {fuzz!r}
from hunts import fuzz, fuzz_files, fuzz_readers
def read(folder):
    data = (folder / "a.json").read_bytes()
    if b"5" in data:
        raise KeyError("a field")
    if b"x" in data:
        os.abort()
fuzz_readers.READERS.clear()
files = {{"a.json": b'{{"a": [1, 2]}}'}}
fuzz_readers.READERS["planted"] = fuzz_readers.Reader(lambda: files, ("a.json",), read)
fuzz._command = lambda before, name, *limits: [
    sys.executable, {own!r}, name, *(f"--{{key}}={{value}}" for key, value in zip(
        ("seed", "start", "count", "seconds", "place"), limits))]
fuzz.FOLDER = fuzz.Path({folder!r})
sys.exit(fuzz.main())
"""


def hunt(folder: Path, *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, what was saved, and what was said, of a hunt over a reader with two faults."""
    own = folder / "planted.py"
    values = {
        "tests": str(FUZZ.parents[1]),
        "fuzz": str(FUZZ),
        "own": str(own),
        "folder": str(folder / "found"),
    }
    own.write_text(_PLANTED.format(**values), encoding="utf-8")
    done = subprocess.run([sys.executable, own, "files", *arguments], capture_output=True, text=True)
    saved = [
        json.loads(path.read_text(encoding="utf-8")) for path in sorted((folder / "found").glob("*.json"))
    ]
    return done.returncode, saved, done.stdout + done.stderr


@pytest.mark.slow
def test_planted_faults_are_found_and_found_again(tmp_path: Path) -> None:
    code, saved, said = hunt(tmp_path, "--count", "400", "--seed", "3")
    assert code == 1, said
    kinds = {finding["what"] for finding in saved}
    assert kinds == {"KeyError: 'a field'", "crash: the process ended with SIGABRT"}, said
    report = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    assert report["inputs"] == 400 and report["seed"] == 3  # it went on behind each crash
    (wrong,) = (finding for finding in saved if finding["input"])
    # The input has become small, and a part of the hunt finds it again.
    number = wrong["number"]
    code, again, _ = hunt(tmp_path, "--count", "1", "--seed", "3", "--start", str(number))
    assert code == 1 and any(finding["number"] == number for finding in again)


def test_an_input_follows_from_seed_and_number() -> None:
    from hunts.fuzz_bodies import body_of
    from hunts.fuzz_hunt import chance_of
    from hunts.fuzz_values import change, dumps

    def made(seed: int, number: int) -> bytes:
        chance = chance_of(seed, "bodies", number)
        return dumps(change(body_of("/v1/completions", chance), chance), chance)

    # Made again after hundreds of others: no change may reach the values that inputs are made of.
    first = {(seed, number): made(seed, number) for seed in (1, 2) for number in range(300)}
    assert first == {(seed, number): made(seed, number) for seed, number in first}
    assert len(set(first.values())) > 500


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ((500, b"{}"), "status 500"),
        ((200, b'{"choices": [{"logprob": -Infinity}]}'), "an answer holds -Infinity"),
        ((200, b'data: {"choices": []}\n\n'), "a stream without its end"),
        (
            (400, b'{"error": {"type": "invalid_request_error", "message": "a\\nb"}}'),
            "an error with line breaks",
        ),
    ],
)
def test_wrong_answers_are_findings(answer: tuple[int, bytes], kind: str) -> None:
    from hunts.fuzz_bodies import check_answer
    from hunts.fuzz_hunt import Finding

    with pytest.raises(Finding, match=kind):
        check_answer("/v1/completions", *answer)
