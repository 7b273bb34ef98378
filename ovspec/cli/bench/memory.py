"""`ovspec bench memory`: starts and memory of ovspec and OpenVINO GenAI."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click
from rich.table import Table

from ovspec.bench.footprint import NEW_TOKENS, CachedStart, Footprint, FootprintBench
from ovspec.cli.options.bench import (
    check_outputs,
    context_option,
    read_source,
    source_options,
    usual_contexts,
)
from ovspec.cli.options.common import json_option, properties_from, property_option
from ovspec.cli.options.forms import default_option
from ovspec.cli.options.output import show_report, with_progress

_SECONDS = ("start s", "first token s", "cpu s")


@click.command()
@source_options
@context_option(int, "16384", "Prompt tokens in the cache.")
@default_option("--repeat", 3, "Starts of each engine.")
@property_option
@json_option
def memory(
    context: int | None, repeat: int, properties: tuple[str, ...], json_path: str | None, **options: Any
) -> None:
    """Measure starts and resident memory of ovspec and of OpenVINO GenAI, with the same cache precision.

    Every start has its own process; ratios are of the time to the first token. The cache is u8 by token
    unless --property sets another. Starts from a CACHE_DIR are measured in the same turns; the start that
    fills it does not count.
    """
    check_outputs(json_path)
    source = read_source(options)
    if context is None:
        (context,) = usual_contexts(source, NEW_TOKENS, 16384)
    bench = FootprintBench(source, context, repeat, properties_from(properties))
    records, cached = with_progress(bench.num_steps, bench.run)
    theirs, ours = records
    *others, ours_cached = cached
    ratios = {
        "start": ours.first_token_s / theirs.first_token_s,
        "cached_start": ours_cached.first_token_s / min(other.first_token_s for other in others),
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
    titles = (*_SECONDS, "anonymous MB", "with context", "mapped MB")
    table = Table("", *titles, title=title)
    for record in records:
        sizes = (record.loaded_anon_bytes, record.anon_bytes, record.file_bytes)
        table.add_row(record.engine, *_seconds(record), *(f"{size / 1e6:.0f}" for size in sizes))
    table.add_row("ratio", "", f"{ratios['start']:.2f}", "", "", f"{ratios['anon']:.2f}", "")
    return table


def cached_table(starts: list[CachedStart], ratio: float) -> Table:
    """The starts from CACHE_DIR."""
    table = Table("", *_SECONDS, "anonymous MB", "first token", title="starts from CACHE_DIR")
    for start in starts:
        sizes = (start.loaded_anon_bytes, start.anon_bytes)
        table.add_row(start.name, *_seconds(start), *(f"{size / 1e6:.0f}" for size in sizes))
    table.add_row("ratio to the quickest other", "", f"{ratio:.2f}", "", "", "")
    return table


def _seconds(start: Footprint | CachedStart) -> list[str]:
    return [f"{seconds:.3f}" for seconds in (start.start_s, start.first_token_s, start.cpu_s)]
