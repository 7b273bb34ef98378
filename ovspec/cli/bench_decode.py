"""`ovspec bench decode`: tokens per second with a long context, by mode."""

from __future__ import annotations

from typing import Any

import click

from ovspec.bench.acceptance_trace import AcceptanceTrace
from ovspec.bench.decode import MODES, DecodeBench
from ovspec.cli.bench_options import read_source, run_and_show, source_options
from ovspec.cli.options import json_option, properties_from, property_option, sparse_from, weight_options

DEFAULT_MODES = "stock_plain,stock_speculative,dense,commit"


@click.command()
@source_options
@click.option("--context", type=int, default=16384, show_default=True, help="Tokens in the cache.")
@click.option(
    "--acceptance",
    default="synthetic:3/4",
    show_default=True,
    metavar="TRACE",
    help="What decides which drafts are accepted: synthetic:A/N, synthetic:A/DxN for trees of D levels and N "
    "nodes, or a file of `ovspec bench trace`.",
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
@json_option
def decode(
    acceptance: str,
    mode: str,
    budget: int,
    commit_interval: int | None,
    properties: tuple[str, ...],
    json_path: str | None,
    **options: Any,
) -> None:
    """Time whole generations after a random context; the modes run in turn.

    Passes are real. A trace decides which drafts are accepted, in every mode alike. The stock modes use
    OpenVINO's own attention at the plugin's defaults, in the same decoding loop.
    """
    bench = DecodeBench(
        source=read_source(options),
        trace=AcceptanceTrace.of(acceptance),
        sparse=sparse_from(options | {"budget": budget}),
        interval=commit_interval,
        modes=tuple(mode.split(",")),
        properties=properties_from(properties),
        **{name: options[name] for name in ("context", "draft_budget", "max_new_tokens", "repeat")},
    )
    run_and_show(bench, json_path, native="native" in {MODES[name] for name in bench.modes})
