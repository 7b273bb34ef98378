"""`ovspec recommend`: whether drafts speed a model up on this machine, and which settings do."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import click

from ovspec.bench.prompt_file import ALL, BenchPrompt, read_prompt_file
from ovspec.bench.recommend import Trial, best_of, recommend_bench, trials_of
from ovspec.cli.generate import read_prompt
from ovspec.cli.options.common import (
    draft_folder,
    memory_limit_from,
    memory_options,
    properties_from,
    property_option,
)
from ovspec.cli.options.forms import MODEL, PATH, default_option, json_flag, typed_option
from ovspec.cli.options.output import print_json, print_rows, with_progress
from ovspec_models import ModelInfo


@click.command()
@click.argument("model", metavar="DIR", type=MODEL)
@click.option("-p", "--prompt", help="A prompt as you use the model for.  [default: a story]")
@typed_option("--prompt-file", PATH, "File with such a prompt.")
@typed_option("--prompts", PATH, "Many prompts, as of `ovspec bench generate`.", metavar="FILE.jsonl")
@default_option("--max-new-tokens", 64, type=click.IntRange(8, 4096))
@default_option(
    "--draft-model",
    "auto",
    "Folder of the draft model; auto: the one exported with the model; none: go without.",
)
@property_option
@memory_options
@json_flag
def recommend(
    model: Path,
    prompt: str | None,
    prompt_file: Path | None,
    prompts: Path | None,
    max_new_tokens: int,
    draft_model: str,
    properties: tuple[str, ...],
    as_json: bool,
    **memory: Any,
) -> None:
    """Measure whether drafts make the model in DIR faster here, with which drafter and draft length.

    Every drafter that needs no further files answers the same prompts, as in `ovspec bench generate`; all of
    them are lossless. Ratios are of the same prompt and round; a gain above the tokens of a pass can't be,
    and is not recommended. What pays depends on the text, so give prompts like yours.
    """
    asked = _prompts(prompt, prompt_file, prompts)
    given = given_options(properties, memory)
    draft = draft_folder(model, draft_model)
    if draft is not None:
        ModelInfo.read(draft)
    arguments = {**properties_from(properties), "memory_limit": memory_limit_from(dict(memory))}
    bench = recommend_bench(model, draft, asked, max_new_tokens, arguments)
    trials = trials_of(with_progress(bench.num_steps, bench.run))
    best = best_of(trials)
    command = None
    if best is not None:
        command = f"ovspec generate -m {shlex.quote(str(model))} {_options(best, draft_model)}{given}"
    verdict = _verdict(best, trials)
    if as_json:
        shown = [{**asdict(trial), "noise": trial.is_noise} for trial in trials]
        print_json(
            {
                "trials": shown,
                "best": None if best is None else shown[trials.index(best)],
                "verdict": verdict,
                "command": command,
            }
        )
        return
    _show(trials)
    click.echo(verdict if command is None else f"{verdict}; {command}")


def _prompts(prompt: str | None, prompt_file: Path | None, prompts: Path | None) -> list[BenchPrompt]:
    if prompts is not None:
        if prompt is not None or prompt_file is not None:
            raise ValueError("--prompts excludes --prompt and --prompt-file: give one of them")
        return read_prompt_file(prompts)
    if prompt is None and prompt_file is None:
        prompt = files("ovspec.cli").joinpath("demo_prompt.txt").read_text(encoding="utf-8").rstrip("\n")
    return [BenchPrompt(0, ALL, {"prompt": read_prompt(prompt, prompt_file)})]


def given_options(properties: tuple[str, ...], memory: dict[str, Any]) -> str:
    """The options that the measurement ran with, for the command that is recommended."""
    given = "".join(f" --property {shlex.quote(item)}" for item in properties)
    if memory["memory_limit"]:
        given += f" --memory-limit {memory['memory_limit']}"
    if memory["no_memory_check"]:
        given += " --no-memory-check"
    return given


def _verdict(best: Trial | None, trials: list[Trial]) -> str:
    if best is None:
        found = max(trials, key=lambda trial: trial.ratio.value)
        return (
            f"no recommendation: {found.mode} was timed at {found.ratio.value:.2f} times plain decoding, of "
            f"{found.tokens_per_pass:.2f} at most: other work disturbs the timings; call it again when the "
            "machine is idle"
        )
    if best.drafter == "none":
        return "drafts are not worth it here"
    return f"{best.mode}: {best.ratio.shown('.2f')} times plain decoding"


def _options(best: Trial, draft_model: str) -> str:
    is_given = best.drafter in ("assistant", "auto") and draft_model != "auto"
    named = f"--draft-model {shlex.quote(draft_model)} " if is_given else ""
    length = best.num_assistant_tokens
    return f"{named}--drafter {best.drafter}" + (f" --num-assistant-tokens {length}" if length else "")


def _show(trials: list[Trial]) -> None:
    rows = [
        (
            trial.mode,
            f"{trial.tokens_per_s:.1f}",
            trial.ratio.shown(".2f") + (" NOISE" if trial.is_noise else ""),
            f"{trial.tokens_per_pass:.2f}",
        )
        for trial in trials
    ]
    print_rows(("mode", "tokens/s", "by plain (95%)", "tokens a pass"), rows)
