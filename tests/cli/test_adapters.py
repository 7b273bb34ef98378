"""`--adapter` of the commands that generate."""

from __future__ import annotations

from pathlib import Path

import pytest
from adapter_files import random_adapter
from commands import one_line, ovspec
from prompts import STORY

from ovspec_models import demo_pair_path

OPTIONS = ("-m", demo_pair_path(), "--drafter", "none")
ANSWER = ("generate", *OPTIONS, "--max-new-tokens", "12", "--prompt", STORY)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [
        random_adapter(folder / f"a={seed}.safetensors", demo_pair_path(), 4, seed, 3.0) for seed in (1, 2)
    ]


@pytest.mark.slow
def test_generate_takes_adapters_with_alphas(files: list[Path], tmp_path: Path) -> None:
    """A name may hold "=". A prefix cache belongs to its adapters."""
    one, two = files
    asked = [(), (f"{one}",), (f"{one}=1.0",), (f"{one}=0",), (f"{one}", f"{two}=-0.5")]
    answers = []
    for adapters in asked:
        run = ovspec(*ANSWER, *(word for adapter in adapters for word in ("--adapter", adapter)))
        assert run.returncode == 0, run.stderr
        answers.append(run.stdout)
    assert answers[0] == answers[3] and answers[1] == answers[2] and len(set(answers)) == 3
    saved = ovspec("cache", "save", *OPTIONS, "--adapter", one, "--prompt", STORY, tmp_path / "story")
    assert saved.returncode == 0, saved.stderr
    begun = ovspec(*ANSWER, "--adapter", one, "--prefix-cache", tmp_path / "story")
    assert begun.stdout == answers[1] and "warning" not in begun.stderr
    other = ovspec(*ANSWER, "--prefix-cache", tmp_path / "story")
    assert other.stdout == answers[0] and "was saved with another set of LoRA adapters" in other.stderr


@pytest.mark.parametrize(
    ("adapter", "options", "message"),
    [
        ("none.safetensors", (), "none.safetensors: No such file or directory; give the file of a LoRA"),
        ("{}=nan", (), "alpha=nan of Adapter("),
        ("{}", ("--attention", "stock"), "--linear stock, as --attention stock has it: only our linear"),
    ],
)
def test_what_is_refused(files: list[Path], adapter: str, options: tuple[str, ...], message: str) -> None:
    refused = ovspec(*ANSWER, *options, "--adapter", adapter.format(files[0]))
    assert refused.returncode == 2 and message in one_line(refused)


def test_an_adapter_is_not_written_over(files: list[Path]) -> None:
    held = files[0].read_bytes()
    for adapter in (str(files[0]), f"{files[0]}=0.5"):
        run = ovspec("cache", "save", *OPTIONS, "--adapter", adapter, "--prompt", STORY, files[0])
        assert f"OUT {files[0]}: is the file that is read" in one_line(run)
        assert files[0].read_bytes() == held
