"""`ovspec bench trace`: record which drafts a pipeline accepts, or what drafters offer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ovspec.bench.offers import record_offers
from ovspec.bench.prompt_file import ALL, BenchPrompt, read_prompt_file, token_ids
from ovspec.bench.record import record_trace
from ovspec.cli.options.bench import check_writable
from ovspec.cli.options.common import (
    max_new_tokens_option,
    memory_options,
    model_option,
    prefill_options,
    prompts_options,
    property_option,
    verify_options,
)
from ovspec.cli.options.drafting import drafting_fields, drafting_options
from ovspec.cli.options.forms import PATH
from ovspec.cli.options.output import with_progress
from ovspec.cli.options.pipeline import PipelineChoice
from ovspec.drafters import Auto
from ovspec.eval import read_prompts
from ovspec_models.sources import model_name


@click.command()
@model_option
@prompts_options
@max_new_tokens_option
@click.option("-o", "--output", type=PATH, required=True, metavar="FILE", help="The trace.")
@click.option(
    "--offers",
    is_flag=True,
    help="Record what every drafter would propose at each token, for `bench schedule`.",
)
@click.option("--category", metavar="FIELD", help="Offers: field of a line that names its category.")
@property_option
@drafting_options
@verify_options
@prefill_options
@memory_options
def trace(
    prompts: Path,
    limit: int | None,
    max_new_tokens: int,
    output: Path,
    offers: bool,
    category: str | None,
    **options: Any,
) -> None:
    """Generate greedily; record the accepted tokens of every draft and the corrections of commits.

    With --offers decoding is plain, and the drafters of `auto` say at every token what they would propose:
    the length of the match, how many tokens, and how many of them the answer goes on with.
    """
    if category is not None and not offers:
        raise ValueError(f"--category {category} needs --offers")
    verify = options["verify"]
    choice = PipelineChoice.of(options)
    drafter = choice.drafter
    if drafter is None:
        raise ValueError("a trace needs drafts: give --draft-model DIR or --drafter NAME")
    check_writable("--output", output)
    if offers:
        if given := drafting_fields(options, drafts=False):
            name, value = next(iter(given.items()))
            raise ValueError(
                f"--{name.replace('_', '-')} {value}: --offers records all that every drafter proposes; "
                "leave this option out"
            )
        _record_offers(choice, read_prompt_file(prompts, category, limit), max_new_tokens, output)
        return
    settings = {**drafting_fields(options, drafts=True), "max_new_tokens": max_new_tokens}
    asked = read_prompts(prompts)[:limit]
    texts = [prompt.text for prompt in asked]
    pipeline = choice.start()
    bodies = [BenchPrompt(prompt.line, ALL, {"prompt": prompt.text}) for prompt in asked]
    token_ids(pipeline.get_tokenizer(), bodies, pipeline.max_model_len)  # refuses before the first answer
    read = ", sparse prefill" if choice.prefill else ""
    source = f"{model_name(choice.model)}, {drafter.name}, {verify}{read}, {len(texts)} prompts"
    recorded = with_progress(len(texts), lambda tick: record_trace(pipeline, texts, settings, source, tick))
    recorded.save(output)
    drafts, corrections = len(recorded.proposed), len(recorded.confirmed)
    click.echo(
        f"{output}: {drafts} drafts, {recorded.tokens_per_pass():.2f} tokens a verification, "
        f"{corrections} corrections by commits"
    )


def _record_offers(
    choice: PipelineChoice, prompts: list[BenchPrompt], max_new_tokens: int, output: Path
) -> None:
    if not isinstance(choice.drafter, Auto) or choice.verify != "dense" or choice.prefill:
        raise ValueError("--offers needs --drafter auto, dense verification and dense prompts")
    pipeline = choice.start()
    recorded = with_progress(
        len(prompts),
        lambda tick: record_offers(pipeline, prompts, max_new_tokens, choice.model.resolve().name, tick),
    )
    recorded.save(output)
    positions = sum(answer.positions for answer in recorded.answers)
    click.echo(f"{output}: {len(recorded.answers)} answers, {positions} tokens behind their first")
