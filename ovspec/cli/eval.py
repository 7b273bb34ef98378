"""`ovspec eval`: compare a verification setting with dense decoding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ovspec.cli.eval_lm import lm
from ovspec.cli.eval_rag import rag
from ovspec.cli.eval_selection import selection
from ovspec.cli.eval_tasks import tasks
from ovspec.cli.options.bench import check_outputs
from ovspec.cli.options.common import (
    float_list,
    int_list,
    json_option,
    max_new_tokens_option,
    prompts_options,
)
from ovspec.cli.options.drafting import drafting_fields
from ovspec.cli.options.forms import COUNT, PATH, default_option, typed_option
from ovspec.cli.options.help import ShortHelpCommand
from ovspec.cli.options.output import show_report, with_progress
from ovspec.cli.options.pipeline import PipelineChoice, pipeline_options
from ovspec.eval import FidelityEval, Setting, plot_fidelity, read_prompts, sweep
from ovspec.eval.setting import sweep_option
from ovspec.modes.sparse_prefill import SparsePrefill
from ovspec.modes.verify_mode import VerifyMode, calibrated_mode
from ovspec_models import OvspecConfig

# Fields of SparseVerify by the parameter of their sweep.
SWEEPS = {
    "budget": "budgets",
    "rho": "rhos",
    "coverage": "coverages",
    "expert_budget": "expert_budgets",
    "ffn_density": "ffn_densities",
}


@click.group("eval")
def evaluate() -> None:
    """Measure the quality of a setting."""


evaluate.add_command(lm)
evaluate.add_command(rag)
evaluate.add_command(selection)
evaluate.add_command(tasks)


COMMON = (
    *("model", "prompts", "max_new_tokens", "budgets", "verify", "budget", "drafter"),
    *("properties", "json_path", "plot"),
)


# The default of `generate` is lossless. This command measures lossy settings, so sparse is its default.
@evaluate.command(cls=ShortHelpCommand, common=COMMON, context_settings={"default_map": {"verify": "sparse"}})
@prompts_options
@max_new_tokens_option
@typed_option("--context", COUNT, "Cut longer prompts to their last tokens.")
@default_option(
    "--reference",
    "dense",
    "Compare with dense verification of the same drafts, or with plain decoding.",
    type=click.Choice(["dense", "plain"]),
)
@default_option(
    "--low-margin",
    0.1,
    "Dense top-1 less top-2 log-probability below which a decision is one of low margin.",
    type=click.FloatRange(0),
)
@click.option("--budgets", help="Sweep of --budget, e.g. 256,512,1024.")
@click.option("--rhos", help="Sweep of --rho, e.g. 0.05,0.1,0.2.")
@click.option("--coverages", help="Sweep of --coverage, e.g. 0.8,0.9,0.95.")
@click.option("--expert-budgets", help="Sweep of --expert-budget, e.g. 8,12,16.")
@click.option("--ffn-densities", help="Sweep of --ffn-density, e.g. 0.25,0.5,0.75.")
@json_option
@typed_option("--plot", PATH, "Draw KL against speed as .png, .svg or .pdf.")
@pipeline_options
def fidelity(
    prompts: Path,
    limit: int | None,
    json_path: str | None,
    plot: Path | None,
    **options: Any,
) -> None:
    """Compare verification settings with dense greedy decoding on your prompts.

    First both generate, and tokens and speed are compared. Then both compute the distributions at every
    position of the dense output, and these are compared. A round has 5 draft tokens by default.
    """
    swept = {name: options.pop(option) for name, option in SWEEPS.items()}
    chosen = {name: options.pop(name) for name in ("context", "max_new_tokens", "reference", "low_margin")}
    choice = PipelineChoice.of(options)
    settings = settings_from(choice.verify, swept, choice.prefill)
    check_outputs(json_path, plot)
    evaluation = FidelityEval(
        model=choice.model,
        make_pipeline=_with_its_operations(choice, settings).start,
        prompts=read_prompts(prompts)[:limit],
        settings=settings,
        drafter=choice.drafter.name if choice.drafter else None,
        draft_model=choice.draft,
        drafting=drafting_fields(options, choice.drafter is not None),
        **chosen,
    )
    report = with_progress(evaluation.num_steps, evaluation.run)
    notes = ["", *report.notes()]
    show_report(report.as_json(), json_path, report.tables(), [*report.lines(), ""], notes)
    if plot is not None:
        plot_fidelity(report, plot)


def _with_its_operations(choice: PipelineChoice, settings: list[Setting]) -> PipelineChoice:
    """The choice that decodes as commits confirm: limits of channels choose another operation."""
    config = OvspecConfig.load(choice.model)
    found = [Setting(calibrated_mode(setting.verify, config)) for setting in settings]
    if not any(setting.commits_channels for setting in found):
        return choice
    return replace(choice, arguments={**choice.arguments, "ffn": "native"})


def settings_from(
    verify: VerifyMode, swept: dict[str, str | None], prefill: SparsePrefill | None = None
) -> list[Setting]:
    """The settings to compare: the one that the verification options describe, or a sweep over it.

    `swept`: texts of the sweep options by field.
    """
    given = {name: text for name, text in swept.items() if text is not None}
    options = [sweep_option(name) for name in given]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(options)} exclude each other: sweep one at a time")
    for name, text in given.items():
        parse = int_list if name in ("budget", "expert_budget") else float_list
        return sweep(verify, name, parse(options[0], text), prefill)
    return [Setting(verify, prefill)]
