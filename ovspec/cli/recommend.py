"""`ovspec recommend`: whether drafts speed a model up on this machine, and which settings do."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import click

from ovspec.bench.recommend import RecommendBench, Trial, best_of
from ovspec.cli.generate import read_prompt
from ovspec.cli.option_forms import MODEL, PATH, default_option, json_flag, typed_option
from ovspec.cli.options import (
    draft_folder,
    memory_limit_from,
    memory_options,
    properties_from,
    property_option,
)
from ovspec.cli.output import print_json, print_rows, with_progress


@click.command()
@click.argument("model", metavar="DIR", type=MODEL)
@click.option("-p", "--prompt", help="A prompt as you use the model for.  [default: a story]")
@typed_option("--prompt-file", PATH, "File with such a prompt.")
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
    max_new_tokens: int,
    draft_model: str,
    properties: tuple[str, ...],
    as_json: bool,
    **memory: Any,
) -> None:
    """Measure whether drafts make the model in DIR faster here, with which drafter and draft length.

    Every drafter that needs no further files generates the same text; all of them are lossless. Each takes
    turns with plain decoding, and ratios are of the same turn; a gain above the tokens of a round can't be,
    and is not recommended. What pays depends on the text, so give a prompt like yours.
    """
    if prompt is None and prompt_file is None:
        prompt = files("ovspec.cli").joinpath("demo_prompt.txt").read_text(encoding="utf-8").rstrip("\n")
    text = read_prompt(prompt, prompt_file)
    given = given_options(properties, memory)
    draft = draft_folder(model, draft_model)
    chosen = {**properties_from(properties), "memory_limit": memory_limit_from(dict(memory))}
    drafters = (*(["assistant"] if draft else []), "prompt_lookup", "suffix")
    bench = RecommendBench(model, draft, drafters, text, max_new_tokens, chosen)
    trials = with_progress(bench.num_steps, bench.run)
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
        found = max(trials, key=lambda trial: trial.ratio.median)
        return (
            f"no recommendation: {found.drafter}, {found.num_assistant_tokens} tokens a round, was timed at "
            f"{found.ratio.median:.2f} times plain decoding, of {found.tokens_per_round:.2f} at most: "
            "other work disturbs the timings; call it again when the machine is idle"
        )
    if best.drafter == "none":
        return "drafts are not worth it here"
    return (
        f"{best.drafter}, {best.num_assistant_tokens} tokens a round: {best.ratio.median:.2f} times plain "
        f"decoding, {best.ratio.min:.2f} to {best.ratio.max:.2f} over {best.turns} turns"
    )


def _options(best: Trial, draft_model: str) -> str:
    if best.drafter == "none":
        return "--drafter none"
    is_given = best.drafter == "assistant" and draft_model not in ("auto", "none")
    named = f"--draft-model {draft_model} " if is_given else ""
    return f"{named}--drafter {best.drafter} --num-assistant-tokens {best.num_assistant_tokens}"


def _show(trials: list[Trial]) -> None:
    rows = [
        (
            trial.drafter,
            str(trial.num_assistant_tokens or "-"),
            f"{trial.tokens_per_s:.1f}",
            f"{trial.ratio.median:.2f} ({trial.ratio.min:.2f}-{trial.ratio.max:.2f})"
            + (" NOISE" if trial.is_noise else ""),
            f"{trial.mean_acceptance_length:.2f}",
        )
        for trial in trials
    ]
    print_rows(("drafter", "tokens a round", "tokens/s", "of plain", "mean acceptance length"), rows)
