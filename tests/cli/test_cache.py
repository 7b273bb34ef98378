"""`ovspec cache save|load`, and starts with such a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import one_line, ovspec
from prompts import STORY

from ovspec_models import demo_pair_path

OPTIONS = ("-m", demo_pair_path(), "--drafter", "none")


@pytest.mark.slow
def test_a_text_is_saved_checked_and_used(tmp_path: Path) -> None:
    path = tmp_path / "story"
    saved = ovspec("cache", "save", *OPTIONS, "--prompt", STORY, path)
    assert saved.returncode == 0 and " tokens, " in saved.stdout
    loaded = ovspec("cache", "load", *OPTIONS, path)
    assert loaded.stdout.startswith(f"{path}: {saved.stdout.split()[1]} tokens")
    answer = ("generate", *OPTIONS, "--max-new-tokens", "8", "--prompt", STORY)
    plain, begun = ovspec(*answer), ovspec(*answer, "--prefix-cache", path)
    assert plain.returncode == 0 and plain.stdout
    assert begun.stdout == plain.stdout and "warning" not in begun.stderr
    path.write_bytes(path.read_bytes()[:-9])
    warned = ovspec(*answer, "--prefix-cache", path)
    assert warned.stdout == plain.stdout and warned.returncode == 0
    assert f"warning: --prefix-cache is not used: {path} is damaged" in warned.stderr
    refused = ovspec("cache", "load", *OPTIONS, path)
    assert refused.returncode == 2 and f"{path} is damaged" in one_line(refused)


@pytest.mark.parametrize("options", [(), ("--system", "Be kind.", "--prompt", "Once")])
def test_one_text_is_asked_for(tmp_path: Path, options: tuple[str, ...]) -> None:
    refused = ovspec("cache", "save", *OPTIONS, *options, tmp_path / "file")
    assert refused.returncode == 2 and "give one of --system and --prompt" in one_line(refused)
