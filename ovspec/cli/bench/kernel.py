"""`ovspec bench kernel`: the attention operation alone."""

from __future__ import annotations

from typing import Any

import click

from ovspec.bench.kernel import QUANT_MODES, KernelBench
from ovspec.cli.options.bench import check_operations
from ovspec.cli.options.common import int_list
from ovspec.cli.options.forms import default_option, json_flag
from ovspec.cli.options.output import print_json, print_rows
from ovspec.devices.properties import CACHE_PRECISIONS


@click.command()
@default_option("--context", "4096,16384", "Tokens of a sequence in the cache.")
@default_option("--tokens", "1,4,8,32", "Rows of a sequence in a call.")
@default_option("--sequences", 1, "Sequences of a call.")
@default_option("--heads", 16, "Query heads.")
@default_option("--kv-heads", 8, "Key and value heads.")
@default_option("--head-size", 128, "Channels of a head.")
@default_option("--kv-cache-precision", "u8", type=click.Choice(list(CACHE_PRECISIONS)))
@default_option("--quant-mode", "BY_TOKEN", "Of u8 keys.", type=click.Choice(QUANT_MODES))
@click.option("--isa", help="Instruction sets, in turn, e.g. avx512vnni,avx2.  [the one in use]")
@default_option("--repeat", 7, "Timed calls per figure.")
@json_flag
def kernel(context: str, tokens: str, isa: str | None, as_json: bool, **options: Any) -> None:
    """Time dense verification attention of one layer, without a model around it.

    Every call reads another cache, so that keys and values come from memory, as in a model with many layers.
    """
    bench = KernelBench(
        contexts=int_list("--context", context),
        tokens=int_list("--tokens", tokens),
        precision=options.pop("kv_cache_precision"),
        isas=tuple(isa.split(",")) if isa else (),
        **options,
    )
    check_operations()
    timings = bench.run()
    if as_json:
        print_json({"records": [timing.as_json() for timing in timings]})
        return
    click.echo(bench.title())
    rows = [
        (f"{t.context:,}", str(t.tokens), t.isa, f"{t.ms:.2f}", f"{t.gb_s:.1f}", f"{t.gmac_s:.0f}")
        for t in timings
    ]
    print_rows(("context", "tokens", "instruction set", "ms", "GB/s", "GMAC/s"), rows)
