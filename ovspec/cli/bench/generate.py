"""`ovspec bench generate`: speed on one's own prompts, by mode."""

from __future__ import annotations

from pathlib import Path

import click

from ovspec.bench.generate import GenerateBench
from ovspec.bench.generate_modes import DEFAULT_MODES, Mode
from ovspec.bench.generate_plot import plot_generate
from ovspec.bench.generate_report import GenerateReport
from ovspec.bench.prompt_file import read_prompt_file
from ovspec.cli.options.bench import check_operations, check_outputs
from ovspec.cli.options.common import (
    draft_folder,
    json_option,
    model_option,
    properties_from,
    property_option,
)
from ovspec.cli.options.forms import COUNT, PATH, default_option, typed_option
from ovspec.cli.options.output import show_report, with_progress
from ovspec_models import ModelInfo


@click.command()
@model_option
@typed_option(
    "--prompts",
    PATH,
    'Per line a JSON string, {"prompt": "..."} or {"messages": [...]}.',
    required=True,
    metavar="FILE.jsonl",
)
@click.option("--category", metavar="FIELD", help="Field of a line that names its category.")
@typed_option("--limit", COUNT, "Only the first prompts of each category.")
@default_option("--mode", ",".join(DEFAULT_MODES), "What to time, see above.")
@default_option("--draft-model", "auto", "As in `ovspec generate`; of assistant, auto and default.")
@default_option("--max-new-tokens", 128, "Most tokens of an answer.", type=click.IntRange(2))
@default_option("--repeat", 1, "Timed answers to every prompt.", type=COUNT)
@property_option
@json_option
@typed_option("--plot", PATH, "Draw speed by category as .png, .svg or .pdf.")
def generate(
    model: Path,
    prompts: Path,
    category: str | None,
    limit: int | None,
    mode: str,
    draft_model: str,
    max_new_tokens: int,
    repeat: int,
    properties: tuple[str, ...],
    json_path: str | None,
    plot: Path | None,
) -> None:
    """Time answers to your own prompts; every mode has a process of its own, and they take turns.

    genai, genai_sdpa: OpenVINO GenAI with paged attention and with its other backend; genai_lookup: with its
    prompt lookup. plain: no drafts. default: default settings. lookup (prompt_lookup), suffix, auto,
    assistant, sparse_self, layer_skip: a drafter, in suffix:4 with 4 tokens in every round, else as the
    schedule decides. sparse, commit: that verification, also with a drafter, as in commit+suffix.
    MODE@PROGRAM runs in another Python, and so in another version of ovspec.

    Prompts are chats where the model has a template. Ratios are to plain and to GenAI.
    """
    check_outputs(json_path, plot)
    ModelInfo.read(model)
    draft, found = draft_folder(model, draft_model), properties_from(properties)
    if draft is not None:
        ModelInfo.read(draft)
    modes = tuple(Mode.of(text, draft, found) for text in mode.split(","))
    bench = GenerateBench(model, modes, read_prompt_file(prompts, category, limit), max_new_tokens, repeat)
    if any(entry.engine == "ovspec" for entry in modes):
        check_operations()
    report = GenerateReport(with_progress(bench.num_steps, bench.run))
    show_report(report.as_json(), json_path, report.tables(), report.lines(), report.notes())
    if plot is not None:
        plot_generate(report, plot)
