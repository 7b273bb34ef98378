"""Every command and example of README and docs runs, on the demo pair in place of a model from the hub."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from prompts import STORY

ROOT = Path(__file__).parents[2]
CHECKPOINTS = {"Qwen/Qwen3-8B": ROOT / "tools/demo/target", "Qwen/Qwen3-0.6B": ROOT / "tools/demo/draft"}
# What the README says, on a scale that a test can afford.
SMALLER = {
    "--max-new-tokens 200": "--max-new-tokens 12",
    "max_new_tokens=200": "max_new_tokens=12",
    "--max-new-tokens 64": "--max-new-tokens 4",
    "bench verify --shape qwen3-0.6b": "bench verify --shape qwen3-0.6b --layers 1 --repeat 1",
    "bench verify --shape qwen3-moe-64x8": "bench verify --shape qwen3-moe-64x8 --layers 1 --repeat 1",
    "bench decode --shape qwen3-0.6b": "bench decode --shape qwen3-0.6b --layers 1 --repeat 1 --budget 64",
    "--context 128,4096,16384,32768": "--context 64,128",
    "--target-kl 0.05": "--target-kl 0.05 --positions 12",
    "--context 16384": "--context 128",
    "--max-new-tokens 96": "--max-new-tokens 8",
    "ovspec bench kernel": "ovspec bench kernel --context 64 --repeat 1",
    "ovspec bench schedule": "ovspec bench schedule --workload repetitive --repeat 1 --max-new-tokens 24 "
    "--skip-tokens 8 --lengths 0,2",
    "bench memory --shape qwen3-0.6b": "bench memory --shape qwen3-0.6b --layers 1 --context 64 --repeat 1",
    "ovspec bench host": "ovspec bench host --steps 10",
    "--budget 512": "--budget 128",
}


# Pages that are made of the code name commands; they give none to be run.
MADE = ("cli.md", "python-api.md", "operations.md")
PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").glob("*.md") if path.name not in MADE)]


def text_of_pages() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in PAGES)


def blocks(language: str) -> list[str]:
    text = text_of_pages()
    found = re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)
    # tests/bundle runs the commands about bundles, for which ovspec must have been installed.
    return [block for block in found if not block.startswith(("make ", "ovspec bundle"))]


def inline_commands() -> list[str]:
    text = text_of_pages()
    return re.findall(r"`(ovspec [a-z][^`]*)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def scaled(text: str) -> str:
    for old, new in {**{k: str(v) for k, v in CHECKPOINTS.items()}, **SMALLER, " DIR": " qwen3"}.items():
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the exported pair in it, made by the README's own command."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "long.txt").write_text(STORY, encoding="utf-8")
    (folder / "prompts.jsonl").write_text(json.dumps(STORY) + "\n", encoding="utf-8")
    (folder / "texts.jsonl").write_text(json.dumps({"text": STORY}), encoding="utf-8")
    export = next(line for line in blocks("sh")[0].splitlines() if line.startswith("ovspec export"))
    run(scaled(export), folder)
    return folder


def run(command: str, folder: Path) -> str:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("number", range(len(blocks("sh"))))
def test_commands(workplace: Path, number: int) -> None:
    for command in scaled(blocks("sh")[number]).splitlines():
        if command.startswith("ovspec export"):
            continue  # the fixture ran it; a second time it would refuse the folder
        assert run(command, workplace).strip()


# Commands that a text names without what they need.
NAMES = {"ovspec demo", "ovspec export", "ovspec generate", "ovspec bundle"}


@pytest.mark.parametrize("command", sorted(set(inline_commands()) - NAMES))
def test_commands_in_the_text(workplace: Path, command: str) -> None:
    assert run(scaled(command), workplace).strip()


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_examples(workplace: Path, number: int) -> None:
    script = workplace / "example.py"
    script.write_text(scaled(blocks("python")[number]), encoding="utf-8")
    assert run(f"{sys.executable} {script}", workplace).strip()
