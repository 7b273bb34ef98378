"""`ovspec bench decode`: tokens per second with a long context, by mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ovspec.bench import MODES, AcceptanceTrace, DecodeBench
from ovspec.cli.bench_options import check_operations, check_writable, read_source, source_options
from ovspec.cli.options import properties_from, property_option, sparse_from, weight_options
from ovspec.cli.output import print_table, with_progress, write_json

DEFAULT_MODES = "stock_plain,stock_speculative,dense,commit"


@click.command()
@source_options
@click.option("--context", type=int, default=16384, show_default=True, help="Tokens in the cache.")
@click.option(
    "--acceptance",
    default="synthetic:3/4",
    show_default=True,
    metavar="TRACE",
    help="What decides which drafts are accepted: synthetic:A/N, or a file of `ovspec bench trace`.",
)
@click.option("--mode", default=DEFAULT_MODES, show_default=True, help=f"What to time: {', '.join(MODES)}.")
@click.option("--budget", type=int, default=2048, show_default=True, help="Tokens that a sparse pass reads.")
@click.option("--commit-interval", type=int, help="Provisional tokens before a dense pass.  [adaptive]")
@click.option(
    "--draft-budget",
    type=int,
    default=512,
    show_default=True,
    help="Tokens that a pass of sparse_self reads.",
)
@click.option("--max-new-tokens", type=int, default=128, show_default=True, help="Tokens of a generation.")
@click.option("--repeat", type=int, default=5, show_default=True, help="Timed generations per mode.")
@weight_options
@property_option
@click.option("--json", "json_path", metavar="FILE", help="Write the figures to FILE; - prints them.")
def decode(
    model: Path | None,
    shape: str | None,
    layers: int | None,
    vocab_size: int | None,
    weight_format: str | None,
    context: int,
    acceptance: str,
    mode: str,
    budget: int,
    commit_interval: int | None,
    draft_budget: int,
    max_new_tokens: int,
    repeat: int,
    properties: tuple[str, ...],
    json_path: str | None,
    **weights: Any,
) -> int:
    """Time whole generations after a random context; the modes run in turn.

    Passes are real. A trace decides which drafts are accepted, in every mode alike. The stock modes use
    OpenVINO's own attention at the plugin's defaults, in the same decoding loop.
    """
    settings = DecodeBench(
        source=read_source(model, shape, layers, vocab_size, weight_format),
        context=context,
        trace=AcceptanceTrace.of(acceptance),
        sparse=sparse_from({"budget": budget, **weights}),
        interval=commit_interval,
        draft_budget=draft_budget,
        max_new_tokens=max_new_tokens,
        repeat=repeat,
        modes=tuple(mode.split(",")),
        properties=properties_from(properties),
    )
    if json_path not in (None, "-"):
        check_writable("--json", Path(str(json_path)))
    if "native" in {MODES[name] for name in settings.modes}:
        check_operations()
    report = with_progress(settings.num_steps, settings.run)
    if write_json(report.as_json(), json_path):
        return 0
    for line in report.lines():
        click.echo(line)
    print_table(report.table())
    return 0
