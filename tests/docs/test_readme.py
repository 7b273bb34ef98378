"""Every command and example of README and docs runs, on the demo pair in place of a model from the hub."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import command, ovspec
from docs.pages import DRAFTERS, PAGES, code_blocks, figures, inline_commands, scaled
from gguf_files import GgufModel
from made_once import MakeOnce
from prompts import STORY
from tiers import by_tier
from tiny_pictures import PICTURES, export_visual

from ovspec_ops import available_isas

pytestmark = pytest.mark.usefixtures("measured_once")
# Commands that are not run here, by their beginning, and why.
NOT_RUN = {
    "make ": "builds an environment and runs these tests",
    "ovspec bundle": "needs an installed ovspec; tests/bundle runs it",
    "bundle/": "tests/bundle runs it",
    "python3 bundle/": "tests/bundle runs it",
    "pip install": "needs a package index",
    "ovspec serve": "runs until it is ended; tests/serve runs it",
    "ovspec bench serve": "needs a server; tests/serve/test_bench_serve.py runs it",
    "ovspec batch": "tests/serve/test_batch.py runs it",
    "ovspec rag": "needs documents; tests/rag runs it",
    "ovspec eval rag": "needs questions; tests/rag runs it",
    "ovspec eval tasks": "needs tasks; tests/eval/test_tasks.py runs it",
    "ovspec eval lm": "needs an extra; tests/eval/test_harness.py runs it",
    "docker ": "needs Docker",
    "ovspec info --self-check --device": "needs a GPU; tests/bench/test_device_check.py runs it on the CPU",
    "ovspec bench verify --device": "needs a GPU",
    "curl localhost": "needs a server; tests/serve asks the same",
    "ray start": "needs several machines; tests/serve/test_cluster.py starts a cluster",
    "RAY_ADDRESS=": "the same",
    "ray get-auth-token": "needs several machines, and the extra ray",
    "export RAY_AUTH_MODE": "sets a variable for the commands below it",
    "ovspec train-head": "needs many texts; tests/train runs it",
    "ovspec generate -m qwen3 --draft-model qwen3-eagle3": "needs the head that it trains",
    "optimum-cli export openvino --task image-text-to-text": "needs the hub; tests/pictures exports the same",
    "ovspec export": "the fixture ran it; a second export refuses the folder",
}
# Commands that the text names without their arguments.
NAMES = {
    *(
        "ovspec batch",
        "ovspec bench",
        "ovspec eval selection",
        "ovspec eval tasks",
        "ovspec bench serve",
        "ovspec cache save",
        "ovspec eval lm",
        "ovspec serve",
    ),
    "ovspec train-head",
    *("ovspec eval rag", "ovspec rag", "ovspec rag ask", "ovspec rag index"),
    *(
        "ovspec bench decode",
        "ovspec bench generate",
        "ovspec bench schedule",
        "ovspec bench trace",
        "ovspec bench verify",
        "ovspec bench verify --plot",
    ),
    *(
        "ovspec bundle",
        "ovspec calibrate",
        "ovspec calibrate --target-kl",
        "ovspec chat",
        "ovspec demo --embedded",
        "ovspec eval fidelity",
    ),
    *(
        "ovspec eval fidelity --ffn-densities",
        "ovspec eval fidelity --prefill sparse --verify dense",
        "ovspec export",
        "ovspec export --sparse-moe",
        "ovspec generate",
        "ovspec generate --json",
    ),
}
# tests/docs/test_figures.py runs these.
FIGURES = {figure.command for figure in figures.FIGURES.values()}


def commands_of(block: str) -> Iterator[str]:
    """The commands of a block; one goes on in the next line while a quotation is open."""
    command = ""
    for line in block.splitlines():
        command = f"{command}\n{line}" if command else line
        if command.count("'") % 2 == 0:
            yield command
            command = ""
    assert not command, f"a quotation that is not closed: {command}"


COMMANDS = [
    (page, command) for page, block in code_blocks("sh", [*PAGES, DRAFTERS]) for command in commands_of(block)
]


def is_run(command: str) -> bool:
    return not command.startswith(tuple(NOT_RUN)) and command not in FIGURES


def of_pages(entries: Iterable[tuple[str, str]]) -> list[Any]:
    """The commands of the pages: those of the README in every run, the others marked slow."""
    listed = list(entries)
    return by_tier(listed, [entry for entry in listed if entry[0] == "README.md"])


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory, make_once: MakeOnce) -> Path:
    """A folder with the pair that the README's own command exports, and a model that reads pictures."""
    folder = tmp_path_factory.mktemp("readme")
    name = "Qwen2.5-VL"
    visual = make_once(f"tiny visual {name}", lambda folder: export_visual(name, folder)) / "ir"
    (folder / "qwen-vl").symlink_to(visual, target_is_directory=True)
    PICTURES[0].save(folder / "cat.png")
    (folder / "long.txt").write_text(STORY, encoding="utf-8")
    GgufModel().write(folder / "model.gguf")
    (folder / "prompts.jsonl").write_text(json.dumps(STORY) + "\n", encoding="utf-8")
    (folder / "texts.jsonl").write_text(json.dumps({"text": STORY}), encoding="utf-8")
    run(scaled(next(line for _, line in COMMANDS if line.startswith("ovspec export"))), folder)
    return folder


def run(line: str, folder: Path) -> str:
    """Standard output of a line of shell; an `ovspec` command alone runs in this process."""
    words = shlex.split(line)
    if words[0] == "ovspec" and not set(line) & set("|<>&;$"):
        done = ovspec(*words[1:], cwd=folder)
    else:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = command("sh", "-c", line, cwd=folder, env={**os.environ, "PATH": path})
    assert done.returncode == 0, f"{line}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize(
    ("page", "command"), of_pages((page, command) for page, command in COMMANDS if is_run(command))
)
def test_commands(workplace: Path, page: str, command: str) -> None:
    asked = re.search(r"OVSPEC_ISA=(\w+)", command)
    if asked and asked[1] not in available_isas():
        pytest.skip(f"this processor has no {asked[1]}")
    assert run(scaled(command), workplace).strip()


def test_what_is_not_run_is_on_a_page() -> None:
    assert not [start for start in NOT_RUN if not any(line.startswith(start) for _, line in COMMANDS)]


def test_the_names_are_in_the_text() -> None:
    assert not NAMES - inline_commands()


@pytest.mark.slow
@pytest.mark.parametrize("command", sorted(inline_commands() - NAMES))
def test_commands_in_the_text(workplace: Path, command: str) -> None:
    assert run(scaled(command), workplace).strip()


@pytest.mark.parametrize(("page", "example"), of_pages(code_blocks("python")))
def test_examples(
    workplace: Path,
    page: str,
    example: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = workplace / "example.py"
    script.write_text(scaled(example), encoding="utf-8")
    monkeypatch.chdir(workplace)
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.strip()
