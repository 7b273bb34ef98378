"""Options of commands that generate: which pipeline, and how it answers."""

from __future__ import annotations

from typing import Any

import click

from ovspec.cli.drafting import Drafting, drafting_from, drafting_options, mode_from
from ovspec.cli.help import Command, option_group
from ovspec.cli.options import backend_options, model_option, properties_from, verify_from, verify_options
from ovspec.generation.generation_config import updated
from ovspec.pipeline.draft_model import draft_model as name_draft_model
from ovspec.pipeline.pipeline import LLMPipeline


def _check_seed(context: click.Context, option: click.Parameter, seed: int | None) -> int | None:
    # click's IntRange would print the range in the help, which has 24 lines.
    if seed is not None and not 0 <= seed < 2**64:
        raise click.BadParameter(f"{seed} is not in the range 0<=x<2**64")
    return seed


max_context_option = click.option(
    "--max-context",
    type=int,
    help="Tokens of prompt and answer for which memory must suffice; see info.",
)
_LENGTH_OPTIONS = [
    click.option(
        "--max-new-tokens", type=int, default=100, show_default=True, help="Most tokens to generate."
    ),
    max_context_option,
    click.option(
        "--stop-string", "stop_strings", multiple=True, help="Text that ends the output; repeatable."
    ),
    click.option("--ignore-eos", is_flag=True, help="Generate past the end-of-sequence token."),
]
SAMPLING_OPTIONS = [
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
    click.option("--seed", type=int, callback=_check_seed, help="Seed of the random streams.  [default: 0]"),
]


def pipeline_options(command: Command) -> Command:
    """Options that make the pipeline: model, device, operations, drafter, verification."""
    return model_option(drafting_options(verify_options(backend_options(command))))


def answer_options(command: Command) -> Command:
    """Options of one answer: its length, sampling and penalties."""
    command = option_group("Sampling", SAMPLING_OPTIONS)(command)
    for option in reversed(_LENGTH_OPTIONS):
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


def serving_pipeline(options: dict[str, Any]) -> LLMPipeline:
    """A pipeline for requests that say themselves how they are sampled; drafting options are its defaults.

    Raises:
        ValueError: as `pipeline_from`.
    """
    given = {**options, "do_sample": False}
    pipeline, _ = pipeline_from(given)
    defaults = generation_options(given)
    del defaults["do_sample"]
    pipeline.set_generation_config(updated(pipeline.get_generation_config(), defaults))
    return pipeline


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
