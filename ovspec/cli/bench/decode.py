"""`ovspec bench decode`: tokens per second with a long context, by mode."""

from __future__ import annotations

from typing import Any

import click

from ovspec.bench.acceptance_trace import AcceptanceTrace
from ovspec.bench.decode import MODES, DecodeBench
from ovspec.bench.decode_report import DecodeReport
from ovspec.cli.options.bench import (
    context_option,
    read_source,
    run_and_show,
    source_options,
    usual_contexts,
)
from ovspec.cli.options.common import (
    json_option,
    properties_from,
    property_option,
    sparse_from,
    weight_options,
)
from ovspec.cli.options.forms import default_option, typed_option

DEFAULT_MODES = "stock_plain,stock_speculative,dense,commit"
MOST_CONTEXT, MOST_BUDGET = 16384, 2048  # of the defaults


@click.command()
@source_options
@context_option(int, str(MOST_CONTEXT), "Tokens in the cache.")
@default_option(
    "--acceptance",
    "synthetic:3/4",
    "What decides which drafts are accepted: synthetic:A/N, synthetic:A/DxN for trees of D levels and N "
    "nodes, or a file of `ovspec bench trace`.",
    metavar="TRACE",
)
@default_option("--mode", DEFAULT_MODES, f"What to time: {', '.join(MODES)}.")
@typed_option(
    "--budget",
    int,
    f"Tokens that a sparse pass reads.  [default: an eighth of the context, at most {MOST_BUDGET}]",
)
@default_option("--commit-interval", 16, "Provisional tokens before a dense pass.")
@default_option("--draft-budget", 512, "Tokens that a pass of sparse_self reads.")
@default_option("--max-new-tokens", 128, "Tokens of a generation.")
@default_option("--repeat", 5, "Timed generations per mode.")
@weight_options
@property_option
@json_option
def decode(
    context: int | None,
    acceptance: str,
    mode: str,
    budget: int | None,
    max_new_tokens: int,
    commit_interval: int,
    properties: tuple[str, ...],
    json_path: str | None,
    **options: Any,
) -> None:
    """Time whole generations after a random context; the modes run in turn.

    Passes are real. A trace decides which drafts are accepted, in every mode alike. The stock modes use
    OpenVINO's own attention at the plugin's defaults, in the same decoding loop.
    """
    source = read_source(options)
    if context is None:
        (context,) = usual_contexts(source, max_new_tokens, MOST_CONTEXT)
    if budget is None:
        budget = max(1, min(MOST_BUDGET, context // 8))
    bench = DecodeBench(
        source=source,
        context=context,
        trace=AcceptanceTrace.of(acceptance),
        sparse=sparse_from(options | {"budget": budget}),
        interval=commit_interval,
        modes=tuple(mode.split(",")),
        properties=properties_from(properties),
        max_new_tokens=max_new_tokens,
        **{name: options[name] for name in ("draft_budget", "repeat")},
    )
    run_and_show(bench, json_path, "native" in {MODES[name] for name in bench.modes}, DecodeReport)
