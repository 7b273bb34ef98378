"""`ovspec bench`: measurements on this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ovspec.bench.backends import BACKENDS, DEFAULT_BACKENDS
from ovspec.bench.host import HostBench
from ovspec.bench.plot import plot_report
from ovspec.bench.verify import VerifyBench
from ovspec.cli.bench.decode import decode
from ovspec.cli.bench.generate import generate
from ovspec.cli.bench.kernel import kernel
from ovspec.cli.bench.memory import memory
from ovspec.cli.bench.prompt import prompt
from ovspec.cli.bench.schedule import schedule
from ovspec.cli.bench.serve import serve
from ovspec.cli.bench.trace import trace
from ovspec.cli.options.bench import (
    check_outputs,
    context_option,
    read_source,
    run_and_show,
    source_options,
    usual_contexts,
)
from ovspec.cli.options.common import (
    int_list,
    json_option,
    linear_option,
    properties_from,
    property_option,
    sparse_from,
    weight_options,
)
from ovspec.cli.options.forms import PATH, default_option, json_flag, typed_option
from ovspec.cli.options.help import ShortHelpCommand
from ovspec.cli.options.output import print_json, print_rows
from ovspec.devices.devices import is_cpu, resolve_device
from ovspec.devices.properties import CACHE_PRECISIONS
from ovspec.modes.row_limits import MAX_NUM_ASSISTANT_TOKENS

DEFAULT_BUDGET = 2048


@click.group()
def bench() -> None:
    """Measure on this machine."""


for command in (decode, generate, prompt, schedule, kernel, memory, serve, trace):
    bench.add_command(command)


VERIFY_COMMON = (
    *("model", "shape", "weight_format", "context", "tokens", "budget", "backend"),
    *("repeat", "json_path", "plot"),
)


@bench.command(cls=ShortHelpCommand, common=VERIFY_COMMON)
@source_options
@context_option(str, "4096,16384", "Tokens in the cache.")
@default_option("--tokens", "1,4,8", "New tokens of a pass.")
@default_option(
    "--budget", DEFAULT_BUDGET, "Tokens of the context that a sparse pass reads; 0: all of them.", type=int
)
@click.option(
    "--backend",
    help=f"What to time: {', '.join(BACKENDS)}.  [default: {','.join(DEFAULT_BACKENDS)}; elsewhere than on a "
    "CPU stock,sparse_stock]",
)
@typed_option(
    "--kv-cache-precision",
    click.Choice(list(CACHE_PRECISIONS)),
    "Cache precision of all backends.  [stock: the plugin's default; ours: u8]",
)
@weight_options
@default_option("--device", "CPU", "OpenVINO device.")
@linear_option
@property_option
@default_option("--repeat", 7, "Timed passes per figure.")
@json_option
@typed_option("--plot", PATH, "Draw time by context as .png, .svg or .pdf.")
def verify(
    context: str | None,
    tokens: str,
    budget: int,
    backend: str | None,
    kv_cache_precision: str | None,
    properties: tuple[str, ...],
    json_path: str | None,
    plot: Path | None,
    **options: Any,
) -> None:
    """Time one pass of stock OpenVINO, dense and sparse verification.

    The backends run in turn. stock: OpenVINO's paged attention at its default properties. dense, sparse: one
    model with ovspec's operations; dense reads everything. sparse_stock: sparse, with OpenVINO's operations
    alone. The context is random: this measures time and bytes, not quality.
    """
    chosen = properties_from(properties)
    if kv_cache_precision is not None:
        if "KV_CACHE_PRECISION" in chosen:
            raise ValueError("--kv-cache-precision and --property KV_CACHE_PRECISION: leave one out")
        chosen["KV_CACHE_PRECISION"] = kv_cache_precision
    source = read_source(options)
    sparse = sparse_from({"budget": budget or None, **options})
    if budget == 0 and sparse.limits_attention:
        raise ValueError(
            "--budget 0: nothing would be limited; give --expert-budget or --ffn-density as well"
        )
    device = resolve_device(options["device"])
    usual = DEFAULT_BACKENDS if is_cpu(device) else ("stock", "sparse_stock")
    rows = int_list("--tokens", tokens)
    timing = VerifyBench(
        source=source,
        contexts=int_list("--context", context)
        if context
        else usual_contexts(source, max(rows), 4096, 16384),
        tokens=rows,
        sparse=sparse,
        repeat=options["repeat"],
        backends=tuple(backend.split(",")) if backend else usual,
        properties=chosen,
        linear=options["linear"],
        device=device,
    )
    check_outputs(json_path, plot)
    report = run_and_show(timing, json_path, native="native" in timing.compiled_models)
    if plot is not None:
        plot_report(report, plot)


@bench.command()
@default_option("--vocab-size", 32000, "Vocabulary of both models.")
@default_option("--num-assistant-tokens", 5, type=click.IntRange(1, MAX_NUM_ASSISTANT_TOKENS))
@default_option("--steps", 200, "Timed steps per setting.")
@json_flag
def host(vocab_size: int, num_assistant_tokens: int, steps: int, as_json: bool) -> None:
    """Time a verification step without the models: tables, sampling, acceptance."""
    records = HostBench(vocab_size, num_assistant_tokens, steps).run()
    if as_json:
        print_json({"records": list(map(asdict, records))})
        return
    click.echo(f"synthetic models, vocabulary {vocab_size}, {num_assistant_tokens} draft tokens a step")
    rows = [(r.setting, str(r.steps), f"{r.median_ms:.2f}", f"{r.p90_ms:.2f}") for r in records]
    print_rows(("setting", "steps", "median ms", "90% below ms"), rows)
