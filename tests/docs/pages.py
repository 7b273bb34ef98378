"""The pages of the documentation and their code blocks."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Generated pages have signatures and options, no commands to run.
GENERATED = ("cli.md", "python-api.md", "operations.md")
PAGES = [
    ROOT / "README.md",
    *sorted(path for path in (ROOT / "docs").glob("*.md") if path.name not in GENERATED),
]
# Its commands run, its examples in Python are parts of programs.
DRAFTERS = ROOT / "ovspec/drafters/README.md"
_SPEC = importlib.util.spec_from_file_location("docs_figures", ROOT / "docs" / "figures.py")
assert _SPEC is not None and _SPEC.loader is not None
#: The module docs/figures.py.
figures = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = figures  # dataclasses look their module up
_SPEC.loader.exec_module(figures)
CHECKPOINTS = {"Qwen/Qwen3-8B": ROOT / "tools/demo/target", "Qwen/Qwen3-0.6B": ROOT / "tools/demo/draft"}
# Settings of a page, and settings at which a test can afford the command.
SMALLER = {
    "--max-new-tokens 200": "--max-new-tokens 12",
    "max_new_tokens=200": "max_new_tokens=12",
    "--max-new-tokens 64": "--max-new-tokens 8",
    "--max-new-tokens 96": "--max-new-tokens 8",
    "bench verify --shape qwen3-0.6b ": "bench verify --shape qwen3-0.6b --layers 1 --repeat 1 ",
    "bench verify --shape qwen3-moe-64x8": "bench verify --shape qwen3-moe-64x8 --layers 1 --repeat 1",
    "--shape llama-3.1-8b --layers 4": "--shape llama-3.1-8b --layers 1 --vocab-size 1000",
    "--repeat 7": "--repeat 1",
    "bench decode --shape qwen3-0.6b": "bench decode --shape qwen3-0.6b --layers 1 --repeat 1 --budget 64",
    "bench prompt --shape qwen3-0.6b --layers 4": "bench prompt --shape qwen3-0.6b --layers 1 "
    "--context 64,128",
    "bench memory --shape qwen3-moe-64x8": "bench memory --shape qwen3-moe-64x8 --layers 1 --context 64 "
    "--repeat 1",
    "bench memory --shape qwen3-0.6b ": "bench memory --shape qwen3-0.6b --layers 1 --repeat 1 ",
    "--layers 6": "--layers 1",
    "--repeat 3": "--repeat 1",
    "--context 128,4096,16384": "--context 64,128",
    "--context 65536,131064": "--context 64,128",
    "--context 65536,131056": "--context 64,128",
    "--context 131056": "--context 128",
    "--context 128,16384": "--context 64,128",
    "--context 16384": "--context 128",
    "--budgets 64,128,256,512": "--budgets 64,128",
    "--target-kl 0.05": "--target-kl 0.5 --positions 12",
    "--budget 512": "--budget 128",
    "ovspec bench kernel": "ovspec bench kernel --context 64 --repeat 1",
    # The modes of the page stay.
    "bench generate -m qwen3 --prompts prompts.jsonl --mode": "bench generate --max-new-tokens 8 -m qwen3 "
    "--prompts prompts.jsonl --mode",
    "bench generate -m qwen3": "bench generate -m qwen3 --mode plain,suffix --max-new-tokens 8",
    "ovspec bench host": "ovspec bench host --steps 10",
    "--self-check --model": "--self-check --splits 2 --model",
    "ovspec recommend DIR": "ovspec recommend DIR --max-new-tokens 8",
}


def code_blocks(language: str, pages: Iterable[Path] = PAGES) -> list[tuple[str, str]]:
    """Page and text of every block of a language."""
    return [
        (str(page.relative_to(ROOT)), block)
        for page in pages
        for block in re.findall(
            rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL
        )
    ]


def inline_commands() -> set[str]:
    """Commands in the running text."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    found = re.findall(r"`(ovspec [a-z][^`]*)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return {" ".join(command.split()) for command in found}  # a command may go over two lines


def scaled(text: str) -> str:
    """A command or example with checkpoints and settings for a test."""
    for old, new in {**{k: str(v) for k, v in CHECKPOINTS.items()}, **SMALLER, " DIR": " qwen3"}.items():
        text = text.replace(old, new)
    return text
