"""`ovspec bench kernel`: the attention operation alone."""

from __future__ import annotations

import json

import click
from rich.table import Table

from ovspec.bench.kernel import QUANT_MODES, KernelBench
from ovspec.cli.bench_options import check_operations
from ovspec.cli.option_forms import default_option, json_flag
from ovspec.cli.options import int_list
from ovspec.cli.output import print_table
from ovspec.runtime.compile import CACHE_PRECISIONS


@click.command()
@default_option("--context", "4096,16384", "Tokens in the cache.")
@default_option("--tokens", "1,4,8,32", "Rows of a call.")
@default_option("--heads", 16, "Query heads.")
@default_option("--kv-heads", 8, "Key and value heads.")
@default_option("--head-size", 128, "Channels of a head.")
@default_option("--kv-cache-precision", "u8", type=click.Choice(list(CACHE_PRECISIONS)))
@default_option("--quant-mode", "BY_TOKEN", "Of u8 keys.", type=click.Choice(QUANT_MODES))
@click.option("--isa", help="Instruction sets, in turn, e.g. avx512vnni,avx2.  [the one in use]")
@default_option("--repeat", 7, "Timed calls per figure.")
@json_flag
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
