"""`ovspec bench trace`: record which drafts a pipeline accepts, for `bench decode`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ovspec.bench import record_trace
from ovspec.cli.bench_options import check_writable
from ovspec.cli.drafting import drafting_from, drafting_options, mode_from
from ovspec.cli.eval import generation_options
from ovspec.cli.options import (
    memory_limit_from,
    memory_options,
    properties_from,
    property_option,
    verify_from,
    verify_options,
)
from ovspec.cli.output import with_progress
from ovspec.eval import read_prompts
from ovspec.pipeline.draft_model import draft_model as name_draft_model
from ovspec.pipeline.pipeline import LLMPipeline


@click.command()
@click.option(
    "-m", "--model", type=click.Path(path_type=Path), required=True, help="Folder with the model's IR."
)
@click.option(
    "--prompts",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE.jsonl",
    help='A prompt a line: a JSON string, or an object with "prompt".',
)
@click.option("--limit", type=click.IntRange(1), help="Only the first prompts of the file.")
@click.option(
    "--max-new-tokens", type=click.IntRange(2), default=128, show_default=True, help="Tokens per prompt."
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, metavar="FILE", help="The trace."
)
@property_option
@drafting_options
@verify_options
@memory_options
def trace(
    model: Path,
    prompts: Path,
    limit: int | None,
    max_new_tokens: int,
    output: Path,
    properties: tuple[str, ...],
    commit_interval: int | None,
    **options: Any,
) -> None:
    """Generate greedily; record the accepted tokens of every draft and the corrections of commits."""
    verify = options["verify"]
    mode = mode_from(verify, verify_from(options), commit_interval)
    drafting = drafting_from(model, options)
    memory_limit = memory_limit_from(options)
    if drafting.choice is None:
        raise ValueError("a trace needs drafts: give --draft-model DIR or --drafter NAME")
    settings = {**generation_options(options, drafts=True), "max_new_tokens": max_new_tokens}
    check_writable("--output", output)
    texts = [prompt.text for prompt in read_prompts(prompts)[:limit]]
    pipeline = LLMPipeline(
        model,
        draft_model=name_draft_model(drafting.model) if drafting.model else None,
        drafter=drafting.choice,
        verify=mode,
        memory_limit=memory_limit,
        **properties_from(properties),
    )
    source = f"{Path(model).resolve().name}, {drafting.choice.name}, {verify}, {len(texts)} prompts"
    recorded = with_progress(len(texts), lambda tick: record_trace(pipeline, texts, settings, source, tick))
    recorded.save(output)
    drafts, corrections = len(recorded.proposed), len(recorded.confirmed)
    click.echo(
        f"{output}: {drafts} drafts, {recorded.tokens_per_pass():.2f} tokens a verification, "
        f"{corrections} corrections by commits"
    )
