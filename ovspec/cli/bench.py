"""`ovspec bench`: what verification costs on this machine."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from ovspec.bench import BACKENDS, HostBench, ModelSource, Report, VerifyBench, check_plot, plot_report
from ovspec.cli.options import int_list, properties_from, property_option
from ovspec.compile import CACHE_PRECISIONS
from ovspec.verify_config import SparseVerify
from ovspec_models.shapes import SHAPES
from ovspec_models.synthetic import WEIGHT_FORMATS
from ovspec_ops.self_check import self_check

DEFAULT_BUDGET = 2048


@click.group()
def bench() -> None:
    """Measure on this machine."""


@bench.command()
@click.option("--model", type=click.Path(path_type=Path), help="Folder of an exported model.")
@click.option("--shape", help=f"Random weights of a real shape instead: {', '.join(SHAPES)}.")
@click.option("--layers", type=int, help="With --shape: fewer layers than the real model has.")
@click.option("--vocab-size", type=int, help="With --shape: another vocabulary than 32000.")
@click.option(
    "--weight-format", type=click.Choice(WEIGHT_FORMATS), help="With --shape: format of the weights.  [int8]"
)
@click.option("--context", default="4096,16384", show_default=True, help="Tokens in the cache.")
@click.option("--tokens", default="1,4,8", show_default=True, help="New tokens of a pass.")
@click.option(
    "--budget",
    type=int,
    default=DEFAULT_BUDGET,
    show_default=True,
    help="Tokens of the context that sparse verification may read.",
)
@click.option("--backend", default=",".join(BACKENDS), show_default=True, help="What to time.")
@click.option(
    "--kv-cache-precision",
    type=click.Choice(list(CACHE_PRECISIONS)),
    help="Cache precision of all backends.  [stock: the plugin's default; ours: u8]",
)
@property_option
@click.option("--repeat", type=int, default=7, show_default=True, help="Timed passes per figure.")
@click.option("--json", "json_path", metavar="FILE", help="Write the figures to FILE; - prints them.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw time against context to FILE.png.")
def verify(
    model: Path | None,
    shape: str | None,
    layers: int | None,
    vocab_size: int | None,
    weight_format: str | None,
    context: str,
    tokens: str,
    budget: int,
    backend: str,
    kv_cache_precision: str | None,
    properties: tuple[str, ...],
    repeat: int,
    json_path: str | None,
    plot: Path | None,
) -> int:
    """Time one pass: stock OpenVINO, dense verification and sparse verification, in turn.

    stock is the plain paged transformation at the plugin's default properties; dense and sparse are one
    model with ovspec's attention. The context is random, so this measures time and bytes, not quality.
    """
    chosen = properties_from(properties)
    if kv_cache_precision is not None:
        chosen["KV_CACHE_PRECISION"] = kv_cache_precision
    source = read_source(model, shape, layers, vocab_size, weight_format)
    settings = VerifyBench(
        source=source,
        contexts=int_list("--context", context),
        tokens=int_list("--tokens", tokens),
        sparse=SparseVerify(budget=budget),
        repeat=repeat,
        backends=tuple(backend.split(",")),
        properties=chosen,
    )
    if json_path not in (None, "-"):
        check_writable("--json", Path(str(json_path)))
    if plot is not None:
        check_writable("--plot", plot)
        check_plot(plot)
    if "native" in settings.compiled_models:
        check_operations()
    report = run(settings)
    if plot is not None:
        plot_report(report, plot)
    show(report, json_path)
    return 0


@bench.command()
@click.option("--vocab-size", type=int, default=32000, show_default=True, help="Vocabulary of both models.")
@click.option("--num-assistant-tokens", type=click.IntRange(1, 63), default=5, show_default=True)
@click.option("--steps", type=int, default=200, show_default=True, help="Timed steps per setting.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def host(vocab_size: int, num_assistant_tokens: int, steps: int, as_json: bool) -> None:
    """Time what a verification step costs outside the models: tables, sampling, acceptance."""
    records = HostBench(vocab_size, num_assistant_tokens, steps).run()
    if as_json:
        click.echo(json.dumps({"records": [record.as_json() for record in records]}, indent=2))
        return
    click.echo(f"synthetic models, vocabulary {vocab_size}, {num_assistant_tokens} draft tokens a step")
    table = Table("setting", "steps", "median ms", "90% below ms")
    for record in records:
        table.add_row(record.setting, str(record.steps), f"{record.median_ms:.2f}", f"{record.p90_ms:.2f}")
    Console(file=sys.stdout, soft_wrap=True).print(table)


def read_source(
    model: Path | None,
    shape: str | None,
    layers: int | None,
    vocab_size: int | None,
    weight_format: str | None,
) -> ModelSource:
    """The model to time.

    Raises:
        ValueError: both or none of --model and --shape, options of --shape beside --model, or a bad one.
    """
    if (model is None) == (shape is None):
        given = "both" if model else "none"
        raise ValueError(f"give either --model DIR or --shape NAME ({', '.join(SHAPES)}), got {given}")
    if shape is not None:
        return ModelSource.from_shape(shape, layers, vocab_size, weight_format or WEIGHT_FORMATS[0])
    assert model is not None
    options = {"--layers": layers, "--vocab-size": vocab_size, "--weight-format": weight_format}
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"{name} {value} needs --shape: the model in {model} is what it is")
    return ModelSource.from_folder(model)


def check_writable(option: str, path: Path) -> None:
    """Refuse a file that can't be written, before the long work.

    Raises:
        ValueError: it is a folder, or its folder is missing or can't be written.
    """
    if path.is_dir():
        raise ValueError(f"{option} {path}: is a folder; give a file's name")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ValueError(
            f"{option} {path}: the folder {path.parent} can't be written ({error.strerror}); give another"
        ) from error


def check_operations() -> None:
    """Refuse to time operations that compute wrong results.

    Raises:
        RuntimeError: a native operation differs from its reference on this machine.
    """
    failed = [f"{check.name} ({check.isa})" for check in self_check() if not check.ok]
    if failed:
        raise RuntimeError(
            f"the self-check of the native operations failed: {', '.join(failed)}; nothing is timed on wrong "
            "results, see `ovspec info --self-check`"
        )


def run(settings: VerifyBench) -> Report:
    """Run the bench, with a progress bar where someone watches."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=settings.num_steps)
        # A step is announced when it begins, so the bar moves when the one before it has ended.
        return settings.run(lambda step: progress.update(task, advance=1, description=step))


def show(report: Report, json_path: str | None) -> None:
    """Print the table, or the JSON alone, and write the file."""
    if json_path == "-":
        click.echo(json.dumps(report.as_json(), indent=2))
        return
    if json_path is not None:
        report.save(Path(json_path))
    console = Console(file=sys.stdout, soft_wrap=True)
    for line in report.lines():
        click.echo(line)
    console.print(report.table())
    for line in report.selection_lines():
        click.echo(line)
    if "sparse" in report.settings:
        budget = max(record.budget or 0 for record in report.records)
        click.echo(f"sparse is LOSSY: it reads {budget} tokens of the context, the blocks that score highest")
