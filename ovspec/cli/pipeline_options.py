"""Options of commands that generate: which pipeline, and how it answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ovspec.cli.drafting import Drafting, drafting_from, drafting_options, mode_from
from ovspec.cli.options import (
    Command,
    experts_option,
    ffn_option,
    linear_option,
    properties_from,
    property_option,
    verify_from,
    verify_options,
)
from ovspec.pipeline.draft_model import draft_model as name_draft_model
from ovspec.pipeline.pipeline import LLMPipeline

_PIPELINE_OPTIONS = [
    click.option(
        "-m", "--model", type=click.Path(path_type=Path), required=True, help="Folder with the model's IR."
    ),
    click.option(
        "--max-context", type=int, help="Tokens of prompt and answer that there must be memory for."
    ),
    click.option("--device", default="CPU", show_default=True, help="OpenVINO device."),
    click.option(
        "--attention",
        type=click.Choice(["native", "stock"]),
        default="native",
        show_default=True,
        help="Verification attention: ours, or OpenVINO's.",
    ),
    experts_option,
    ffn_option,
    linear_option,
    property_option,
]
_ANSWER_OPTIONS = [
    click.option(
        "--max-new-tokens", type=int, default=100, show_default=True, help="Tokens to generate at most."
    ),
    click.option("--do-sample", is_flag=True, help="Sample instead of greedy decoding."),
    click.option("--temperature", type=float, help="Sampling temperature.  [default: 1.0]"),
    click.option("--top-p", type=float, help="Nucleus sampling.  [default: 1.0]"),
    click.option("--top-k", type=int, help="Sample from the k most probable tokens."),
    click.option("--min-p", type=float, help="Drop tokens below this share of the largest probability."),
    click.option(
        "--repetition-penalty", type=float, help="Penalty on tokens of prompt and output.  [default: 1.0]"
    ),
    click.option("--presence-penalty", type=float, help="Penalty on tokens of the output.  [default: 0.0]"),
    click.option("--frequency-penalty", type=float, help="The same, times their number.  [default: 0.0]"),
    click.option(
        "--seed", type=click.IntRange(0, 2**64 - 1), help="Seed of the random streams.  [default: 0]"
    ),
    click.option(
        "--stop-string", "stop_strings", multiple=True, help="Text that ends the output; repeatable."
    ),
    click.option("--ignore-eos", is_flag=True, help="Generate past the end-of-sequence token."),
]


def pipeline_options(command: Command) -> Command:
    """Options that make the pipeline: model, device, operations, drafter, verification."""
    command = drafting_options(verify_options(command))
    for option in reversed(_PIPELINE_OPTIONS):
        command = option(command)
    return command


def answer_options(command: Command) -> Command:
    """Options of one answer: its length, sampling and penalties."""
    for option in reversed(_ANSWER_OPTIONS):
        command = option(command)
    return command


def pipeline_from(options: dict[str, Any]) -> tuple[LLMPipeline, Drafting]:
    """The pipeline that the options of `pipeline_options` describe, which are taken out.

    Raises:
        ValueError: options that contradict each other, or a model that can't be served.
    """
    model = options.pop("model")
    mode = mode_from(options["verify"], verify_from(options), options.pop("commit_interval"))
    drafting = drafting_from(model, options)
    generation_options(dict(options))  # refuses before the model is loaded
    properties = properties_from(options.pop("properties"))
    names = ("max_context", "device", "attention", "experts", "ffn", "linear")
    pipeline = LLMPipeline(
        model,
        draft_model=name_draft_model(drafting.model) if drafting.model else None,
        drafter=drafting.choice,
        verify=mode,
        **{name: options.pop(name) for name in names},
        **properties,
    )
    return pipeline, drafting


def generation_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, as fields of a generation configuration.

    Raises:
        ValueError: a sampling option without `--do-sample`.
    """
    for name in ("max_context", "device", "attention", "experts", "ffn", "linear", "properties"):
        options.pop(name, None)
    fields = {name: value for name, value in options.items() if value is not None and value != ()}
    # A folder's generation_config.json may ask for sampling; the command samples when it is told to.
    fields["do_sample"] = options["do_sample"]
    for name in ("temperature", "top_p", "top_k", "min_p", "seed"):
        if name in fields and not options["do_sample"]:
            raise ValueError(
                f"--{name.replace('_', '-')} {fields[name]} needs --do-sample: greedy decoding ignores it"
            )
    if "seed" in fields:
        fields["rng_seed"] = fields.pop("seed")
    return fields
