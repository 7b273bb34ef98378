"""`ovspec bench memory`: starts and memory of ovspec and OpenVINO GenAI."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click
from rich.table import Table

from ovspec.bench.footprint import CachedStart, Footprint, FootprintBench
from ovspec.cli.bench_options import read_source, source_options
from ovspec.cli.option_forms import default_option
from ovspec.cli.options import json_option, properties_from, property_option
from ovspec.cli.output import show_report, with_progress


@click.command()
@source_options
@default_option("--context", 16384, "Prompt tokens in the cache.")
@default_option("--repeat", 3, "Starts of each engine.")
@property_option
@json_option
def memory(
    context: int, repeat: int, properties: tuple[str, ...], json_path: str | None, **options: Any
) -> None:
    """Measure starts and resident memory of ovspec and of OpenVINO GenAI, with the same cache precision.

    Every start has its own process. The cache is u8 by token unless --property sets another. Starts from a
    CACHE_DIR are measured in the same turns; the start that fills it does not count.
    """
    source = read_source(options)
    bench = FootprintBench(source, context, repeat, properties_from(properties))
    records, cached = with_progress(bench.num_steps, bench.run)
    theirs, ours = records
    *others, ours_cached = cached
    ratios = {
        "start": ours.start_cpu_s / theirs.start_cpu_s,
        "cached_start": ours_cached.start_cpu_s / min(other.start_cpu_s for other in others),
        "anon": ours.anon_bytes / theirs.anon_bytes,
    }
    body = {
        "model": source.name,
        "context": context,
        "records": list(map(asdict, records)),
        "cached_starts": list(map(asdict, cached)),
        "ratios": ratios,
    }
    starts = start_table(records, ratios, f"{source.name}, {context:,} tokens, medians of {repeat}")
    show_report(body, json_path, [starts, cached_table(cached, ratios["cached_start"])])


def start_table(records: list[Footprint], ratios: dict[str, float], title: str) -> Table:
    """The figures of every engine."""
    table = Table("", "start s", "cpu s", "anonymous MB", "with context", "mapped MB", title=title)
    for record in records:
        sizes = (record.loaded_anon_bytes, record.anon_bytes, record.file_bytes)
        table.add_row(
            record.engine,
            f"{record.start_s:.2f}",
            f"{record.start_cpu_s:.2f}",
            *(f"{size / 1e6:.0f}" for size in sizes),
        )
    table.add_row("ratio", "", f"{ratios['start']:.2f}", "", f"{ratios['anon']:.2f}", "")
    return table


def cached_table(starts: list[CachedStart], ratio: float) -> Table:
    """The starts from CACHE_DIR."""
    titles = ("start s", "cpu s", "first token s", "anonymous MB")
    table = Table("", *titles, title="starts from CACHE_DIR")
    for start in starts:
        seconds = (start.start_s, start.start_cpu_s, start.first_token_s)
        table.add_row(start.name, *(f"{value:.3f}" for value in seconds), f"{start.anon_bytes / 1e6:.0f}")
    table.add_row("ratio to the quickest other", "", f"{ratio:.2f}", "", "")
    return table
