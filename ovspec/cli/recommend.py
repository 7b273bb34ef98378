"""`ovspec recommend`: whether drafts speed a model up on this machine, and which settings do."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import click

from ovspec.cli.generate import read_prompt
from ovspec.cli.option_forms import PATH, default_option, json_flag, typed_option
from ovspec.cli.options import (
    draft_folder,
    memory_limit_from,
    memory_options,
    properties_from,
    property_option,
)
from ovspec.cli.output import print_json, print_rows, with_progress
from ovspec.pipeline.draft_model import draft_model
from ovspec.pipeline.pipeline import LLMPipeline

_LENGTHS = (2, 4, 6)
_REPEATS = 2
# Timings of one setting vary by about this much; a smaller gain does not justify a draft model.
_GAIN = 1.05


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting: its drafter, draft tokens a round, and what was measured.

    Attributes:
        drafter, num_assistant_tokens: "none" and 0 for plain decoding.
        tokens_per_s: the best of the runs, behind the first token.
        mean_acceptance_length: tokens emitted per round.
    """

    drafter: str
    num_assistant_tokens: int
    tokens_per_s: float
    mean_acceptance_length: float


@click.command()
@click.argument("model", metavar="DIR", type=PATH)
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

    Every drafter that needs no further files generates the same text; all of them are lossless. What pays
    depends on the text, so give a prompt like yours.
    """
    if prompt is None and prompt_file is None:
        prompt = files("ovspec.cli").joinpath("demo_prompt.txt").read_text(encoding="utf-8").rstrip("\n")
    text = read_prompt(prompt, prompt_file)
    draft = draft_folder(model, draft_model)
    names = ["none", *(["assistant"] if draft else []), "prompt_lookup", "suffix"]
    chosen = {**properties_from(properties), "memory_limit": memory_limit_from(dict(memory))}

    def run(announce: Any) -> list[Trial]:
        trials: list[Trial] = []
        for name in names:
            announce(name)
            helper = draft if name == "assistant" else None
            trials += _trials(model, helper, name, text, max_new_tokens, chosen)
        return trials

    trials = with_progress(len(names), run)
    plain, best = trials[0], max(trials, key=lambda trial: trial.tokens_per_s)
    if best.tokens_per_s < _GAIN * plain.tokens_per_s:
        best = plain
    given = "".join(f" --property {shlex.quote(item)}" for item in properties)
    if memory["memory_limit"]:
        given += f" --memory-limit {memory['memory_limit']}"
    if memory["no_memory_check"]:
        given += " --no-memory-check"
    command = f"ovspec generate -m {shlex.quote(str(model))} {_options(best, draft_model)}{given}"
    if as_json:
        body = {"trials": [asdict(trial) for trial in trials], "best": asdict(best), "command": command}
        print_json(body)
        return
    _show(trials, plain)
    verdict = "drafts are not worth it here"
    gain = best.tokens_per_s / plain.tokens_per_s
    if best is not plain:
        verdict = (
            f"{best.drafter}, {best.num_assistant_tokens} tokens a round: {gain:.2f} times plain decoding"
        )
    click.echo(f"{verdict}; {command}")


def _trials(
    model: Path, draft: Path | None, name: str, text: str, max_new_tokens: int, properties: dict[str, Any]
) -> list[Trial]:
    pipeline = LLMPipeline(
        model,
        draft_model=None if draft is None else draft_model(draft),
        drafter=None if name == "none" else name,
        **properties,
    )
    trials = []
    for length in (0,) if name == "none" else _LENGTHS:
        options: dict[str, Any] = {"do_sample": False, "ignore_eos": True}
        options |= {"num_assistant_tokens": length} if length else {}
        # Kernels are built and weights are packed on first use.
        pipeline.generate([text], max_new_tokens=8, **options)
        runs = [
            pipeline.generate([text], max_new_tokens=max_new_tokens, **options).perf_metrics
            for _ in range(_REPEATS)
        ]
        fastest = max(runs, key=lambda metrics: metrics.get_throughput().mean)
        speed, accepted = fastest.get_throughput().mean, fastest.get_mean_acceptance_length()
        trials.append(Trial(name, length, speed, accepted))
    return trials


def _options(best: Trial, draft_model: str) -> str:
    if best.drafter == "none":
        return "--draft-model none"
    named = f"--draft-model {draft_model} " if draft_model not in ("auto", "none") else ""
    which = named if best.drafter == "assistant" else f"--drafter {best.drafter} "
    return f"{which}--num-assistant-tokens {best.num_assistant_tokens}"


def _show(trials: list[Trial], plain: Trial) -> None:
    rows = [
        (
            trial.drafter,
            str(trial.num_assistant_tokens or "-"),
            f"{trial.tokens_per_s:.1f}",
            f"{trial.tokens_per_s / plain.tokens_per_s:.2f}",
            f"{trial.mean_acceptance_length:.2f}",
        )
        for trial in trials
    ]
    print_rows(("drafter", "tokens a round", "tokens/s", "of plain", "mean acceptance length"), rows)
