"""`ovspec bench schedule`: compare the schedule auto with fixed numbers of draft tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ovspec.bench.acceptance_trace import AcceptanceTrace
from ovspec.bench.schedule import WORKLOADS, ScheduleBench
from ovspec.bench.schedule_report import ScheduleReport
from ovspec.bench.source import ModelSource
from ovspec.cli.bench_options import SIZES, check_outputs, run_and_show
from ovspec.cli.option_forms import MODEL, Whole, default_option, typed_option
from ovspec.cli.options import draft_folder, int_list, json_option, properties_from, property_option
from ovspec.drafters import NAMES
from ovspec_models import ModelInfo, demo_pair_path
from ovspec_models.synthetic import WEIGHT_FORMATS


@click.command()
@typed_option("--model", MODEL, "Folder of the model of repetitive and creative.  [the demo pair]")
@default_option("--draft-model", "auto", "As in `ovspec generate`.")
@typed_option("--drafter", click.Choice(NAMES), "Who drafts for them.  [assistant]")
@default_option("--shape", "qwen3-0.6b", "long: random weights of this shape.")
@typed_option("--layers", Whole(1), "long: fewer layers than the real model has.")
@typed_option("--vocab-size", Whole(1), "long: another vocabulary than 32000.")
@typed_option("--weight-format", click.Choice(WEIGHT_FORMATS), "long: its weights.  [int8]")
@default_option("--context", 16384, "long: tokens in the cache.")
@default_option(
    "--acceptance",
    "synthetic:3/4",
    "long: which drafts are accepted, synthetic:A/N or a file of `ovspec bench trace`.",
    metavar="TRACE",
)
@default_option("--workload", ",".join(WORKLOADS), "What to generate.")
@default_option("--lengths", "0,1,2,4,8", "Fixed numbers of draft tokens.")
@default_option("--max-new-tokens", 320, "Tokens of a generation.")
@default_option("--skip-tokens", 64, "Its tokens that do not count.")
@default_option("--repeat", 7, "Timed generations per setting.")
@click.option("--cold", is_flag=True, help="auto forgets what it learned before every generation.")
@property_option
@json_option
def schedule(
    model: Path | None,
    draft_model: str,
    acceptance: str,
    workload: str,
    lengths: str,
    properties: tuple[str, ...],
    json_path: str | None,
    **options: Any,
) -> None:
    """Time the schedule auto and every fixed number of draft tokens in turn, on three workloads.

    repetitive decodes greedily, creative samples, long has a long random context. The best fixed setting is
    marked; auto is compared with it and with plain decoding.
    """
    folder = model or demo_pair_path()
    draft = draft_folder(folder, draft_model, options["drafter"])
    # These refuse before the native operations are checked.
    check_outputs(json_path)
    for path in (folder, draft):
        if path is not None:
            ModelInfo.read(path)
    bench = ScheduleBench(
        model=folder,
        draft_model=draft,
        source=ModelSource.from_shape(*(options.pop(name) for name in ("shape", *SIZES))),
        trace=AcceptanceTrace.of(acceptance),
        workloads=tuple(workload.split(",")),
        lengths=int_list("--lengths", lengths),
        properties=properties_from(properties),
        **options,
    )
    run_and_show(bench, json_path, report_of=ScheduleReport)
