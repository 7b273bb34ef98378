"""`ovspec eval`: compare a verification setting with dense decoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ovspec.bench import check_plot
from ovspec.cli.bench_options import check_writable
from ovspec.cli.drafting import drafting_from, drafting_options, mode_from
from ovspec.cli.eval_lm import lm
from ovspec.cli.help import ShortHelpCommand
from ovspec.cli.options import (
    backend_options,
    float_list,
    int_list,
    model_option,
    properties_from,
    verify_from,
    verify_options,
)
from ovspec.cli.output import print_table, save_text, with_progress
from ovspec.eval import FidelityEval, Prompt, Report, Setting, plot_fidelity, read_prompts, sweep
from ovspec.eval.fidelity import ReferenceMode
from ovspec.eval.setting import sweep_option
from ovspec.generation.generation_config import DEFAULT_NUM_ASSISTANT_TOKENS
from ovspec.pipeline.draft_model import draft_model as name_draft_model
from ovspec.pipeline.pipeline import LLMPipeline
from ovspec.runtime.attention_config import Attention
from ovspec.runtime.expert_budgets import ExpertBackend
from ovspec.runtime.ffn_budgets import FfnBackend
from ovspec.runtime.linear_backend import LinearBackend
from ovspec.verify.verify_mode import VerifyMode, parse_verify


@click.group("eval")
def evaluate() -> None:
    """Measure the quality of a setting."""


evaluate.add_command(lm)


COMMON = (
    *("model", "prompts", "context", "max_new_tokens", "budgets", "verify", "budget", "drafter"),
    *("properties", "json_path", "plot"),
)


# The default of `generate` is lossless. This command measures lossy settings, so sparse is its default.
@evaluate.command(cls=ShortHelpCommand, common=COMMON, context_settings={"default_map": {"verify": "sparse"}})
@model_option
@click.option(
    "--prompts",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE.jsonl",
    help='One JSON string or {"prompt": "..."} per line.',
)
@click.option("--limit", type=click.IntRange(1), help="Only the first prompts of the file.")
@click.option("--context", type=click.IntRange(1), help="Cut longer prompts to their last tokens.")
@click.option(
    "--max-new-tokens", type=click.IntRange(2), default=128, show_default=True, help="Tokens per prompt."
)
@click.option(
    "--reference",
    type=click.Choice(["dense", "plain"]),
    default="dense",
    show_default=True,
    help="Compare with dense verification of the same drafts, or with plain decoding.",
)
@click.option(
    "--low-margin",
    type=click.FloatRange(0),
    default=0.1,
    show_default=True,
    help="Dense top-1 less top-2 log-probability below which a decision is one of low margin.",
)
@click.option("--budgets", help="Sweep of --budget, e.g. 256,512,1024.")
@click.option("--rhos", help="Sweep of --rho, e.g. 0.05,0.1,0.2.")
@click.option("--coverages", help="Sweep of --coverage, e.g. 0.8,0.9,0.95.")
@click.option("--expert-budgets", help="Sweep of --expert-budget, e.g. 8,12,16.")
@click.option("--ffn-densities", help="Sweep of --ffn-density, e.g. 0.25,0.5,0.75.")
@click.option("--json", "json_path", metavar="FILE", help="Write the figures to FILE; - prints them.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw divergence against speed to FILE.png.")
@drafting_options
@verify_options
@backend_options
def fidelity(
    model: Path,
    prompts: Path,
    limit: int | None,
    context: int | None,
    max_new_tokens: int,
    reference: ReferenceMode,
    low_margin: float,
    budgets: str | None,
    rhos: str | None,
    coverages: str | None,
    expert_budgets: str | None,
    ffn_densities: str | None,
    device: str,
    attention: Attention,
    experts: ExpertBackend | None,
    ffn: FfnBackend | None,
    linear: LinearBackend | None,
    properties: tuple[str, ...],
    json_path: str | None,
    plot: Path | None,
    commit_interval: int | None,
    **options: Any,
) -> None:
    """Compare verification settings with dense greedy decoding on your prompts.

    First both generate, and tokens and speed are compared. Then both compute the distributions at every
    position of the dense output, and these are compared. A round has 5 draft tokens by default.
    """
    mode = mode_from(options["verify"], verify_from(options), commit_interval)
    swept = {
        "budget": budgets,
        "rho": rhos,
        "coverage": coverages,
        "expert_budget": expert_budgets,
        "ffn_density": ffn_densities,
    }
    settings = settings_from(parse_verify(mode), swept)
    chosen = properties_from(properties)
    drafting = drafting_from(model, options)
    if json_path not in (None, "-"):
        check_writable("--json", Path(str(json_path)))
    if plot is not None:
        check_writable("--plot", plot)
        check_plot(plot)
    texts: list[Prompt] = read_prompts(prompts)[:limit]

    def make_pipeline(verify: VerifyMode, drafts: bool) -> LLMPipeline:
        return LLMPipeline(
            model,
            device,
            draft_model=name_draft_model(drafting.model) if drafts and drafting.model else None,
            drafter=drafting.choice if drafts else None,
            verify=verify,
            attention=attention,
            experts=experts,
            ffn=ffn,
            linear=linear,
            **chosen,
        )

    evaluation = FidelityEval(
        model=model,
        make_pipeline=make_pipeline,
        prompts=texts,
        settings=settings,
        drafter=drafting.choice.name if drafting.choice else None,
        draft_model=drafting.model,
        drafting=generation_options(options, drafting.choice is not None),
        reference=reference,
        max_new_tokens=max_new_tokens,
        context=context,
        low_margin=low_margin,
    )
    report = with_progress(evaluation.num_steps, evaluation.run)
    show(report, json_path)
    if plot is not None:
        plot_fidelity(report, plot)


def generation_options(options: dict[str, Any], drafts: bool) -> dict[str, Any]:
    """The drafting options that were given, as fields of a generation configuration."""
    fields = {name: value for name, value in options.items() if value is not None}
    if drafts and not {"num_assistant_tokens", "assistant_confidence_threshold"} & fields.keys():
        # The default schedule follows measured times, so the number would differ between settings.
        fields["num_assistant_tokens"] = DEFAULT_NUM_ASSISTANT_TOKENS
    return fields


def settings_from(verify: VerifyMode, swept: dict[str, str | None]) -> list[Setting]:
    """The settings to compare: the one that the verification options describe, or a sweep over it.

    Args:
        verify: the mode.
        swept: texts of the sweep options by field.

    Raises:
        ValueError: two sweeps, or a bad one.
    """
    given = {name: text for name, text in swept.items() if text is not None}
    options = [sweep_option(name) for name in given]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(options)} exclude each other: sweep one at a time")
    for name, text in given.items():
        parse = int_list if name in ("budget", "expert_budget") else float_list
        return sweep(verify, name, parse(options[0], text))
    return [Setting(verify)]


def show(report: Report, json_path: str | None) -> None:
    """Print the table or only the JSON, and write the file."""
    if json_path == "-":
        click.echo(report.dumps())
        return
    for line in report.lines():
        click.echo(line)
    for table in report.tables():
        click.echo()
        print_table(table)
    click.echo()
    for line in report.notes():
        click.echo(line)
    # Behind the figures, which a full disk does not keep from being seen.
    if json_path is not None:
        save_text(report.dumps(), Path(json_path))
