"""`ovspec bench schedule`: compare the schedule auto with fixed numbers of draft tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ovspec.bench.acceptance_trace import AcceptanceTrace
from ovspec.bench.schedule import WORKLOADS, ScheduleBench
from ovspec.bench.source import ModelSource
from ovspec.cli.bench_options import run_and_show
from ovspec.cli.options import draft_folder, int_list, json_option, properties_from, property_option
from ovspec.drafters import NAMES
from ovspec_models import demo_pair_path
from ovspec_models.synthetic import WEIGHT_FORMATS


@click.command()
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    help="Folder of the model of repetitive and creative.  [the demo pair]",
)
@click.option("--draft-model", default="auto", show_default=True, help="As in `ovspec generate`.")
@click.option("--drafter", type=click.Choice(NAMES), help="Who drafts for them.  [assistant]")
@click.option("--shape", default="qwen3-0.6b", show_default=True, help="long: random weights of this shape.")
@click.option("--layers", type=int, help="long: fewer layers than the real model has.")
@click.option("--vocab-size", type=int, help="long: another vocabulary than 32000.")
@click.option("--weight-format", type=click.Choice(WEIGHT_FORMATS), help="long: its weights.  [int8]")
@click.option("--context", type=int, default=16384, show_default=True, help="long: tokens in the cache.")
@click.option(
    "--acceptance",
    default="synthetic:3/4",
    show_default=True,
    metavar="TRACE",
    help="long: which drafts are accepted, synthetic:A/N or a file of `ovspec bench trace`.",
)
@click.option("--workload", default=",".join(WORKLOADS), show_default=True, help="What to generate.")
@click.option("--lengths", default="0,1,2,4,8", show_default=True, help="Fixed numbers of draft tokens.")
@click.option("--max-new-tokens", type=int, default=320, show_default=True, help="Tokens of a generation.")
@click.option("--skip-tokens", type=int, default=64, show_default=True, help="Its tokens that do not count.")
@click.option("--repeat", type=int, default=7, show_default=True, help="Timed generations per setting.")
@click.option("--cold", is_flag=True, help="auto forgets what it learned before every generation.")
@property_option
@json_option
def schedule(
    model: Path | None,
    draft_model: str,
    shape: str,
    layers: int | None,
    vocab_size: int | None,
    weight_format: str | None,
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
    bench = ScheduleBench(
        model=folder,
        draft_model=draft_folder(folder, draft_model, options["drafter"]),
        source=ModelSource.from_shape(shape, layers, vocab_size, weight_format or WEIGHT_FORMATS[0]),
        trace=AcceptanceTrace.of(acceptance),
        workloads=tuple(workload.split(",")),
        lengths=int_list("--lengths", lengths),
        properties=properties_from(properties),
        **options,
    )
    run_and_show(bench, json_path)
