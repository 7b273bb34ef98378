"""`ovspec bench kernel`: the attention operation alone."""

from __future__ import annotations

import json

import click
from rich.table import Table

from ovspec.bench.kernel import QUANT_MODES, KernelBench
from ovspec.cli.bench_options import check_operations
from ovspec.cli.options import int_list
from ovspec.cli.output import print_table
from ovspec.runtime.compile import CACHE_PRECISIONS


@click.command()
@click.option("--context", default="4096,16384", show_default=True, help="Tokens in the cache.")
@click.option("--tokens", default="1,4,8,32", show_default=True, help="Rows of a call.")
@click.option("--heads", type=int, default=16, show_default=True, help="Query heads.")
@click.option("--kv-heads", type=int, default=8, show_default=True, help="Key and value heads.")
@click.option("--head-size", type=int, default=128, show_default=True, help="Channels of a head.")
@click.option(
    "--kv-cache-precision", type=click.Choice(list(CACHE_PRECISIONS)), default="u8", show_default=True
)
@click.option(
    "--quant-mode", type=click.Choice(QUANT_MODES), default="BY_TOKEN", show_default=True, help="Of u8 keys."
)
@click.option("--isa", help="Instruction sets, in turn, e.g. avx512vnni,avx2.  [the one in use]")
@click.option("--repeat", type=int, default=7, show_default=True, help="Timed calls per figure.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def kernel(
    context: str,
    tokens: str,
    heads: int,
    kv_heads: int,
    head_size: int,
    kv_cache_precision: str,
    quant_mode: str,
    isa: str | None,
    repeat: int,
    as_json: bool,
) -> None:
    """Time dense verification attention of one layer, without a model around it.

    Every call reads another cache, so that keys and values come from memory, as in a model with many layers.
    """
    settings = KernelBench(
        contexts=int_list("--context", context),
        tokens=int_list("--tokens", tokens),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        precision=kv_cache_precision,
        quant_mode=quant_mode,
        isas=tuple(isa.split(",")) if isa else (),
        repeat=repeat,
    )
    check_operations()
    timings = settings.run()
    if as_json:
        click.echo(json.dumps({"records": [timing.as_json() for timing in timings]}, indent=2))
        return
    kind = f"u8 {quant_mode.lower().replace('_', ' ')}" if kv_cache_precision == "u8" else kv_cache_precision
    click.echo(f"{heads} heads, {kv_heads} KV heads, head size {head_size}, keys {kind}; median of {repeat}")
    table = Table("context", "tokens", "instruction set", "ms", "GB/s", "GMAC/s")
    for t in timings:
        figures = (f"{t.ms:.2f}", f"{t.gb_s:.1f}", f"{t.gmac_s:.0f}")
        table.add_row(f"{t.context:,}", str(t.tokens), t.isa, *figures)
    print_table(table)
