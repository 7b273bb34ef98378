"""`ovspec bench prompt`: time to the first token and between tokens, by mode."""

from __future__ import annotations

from typing import Any

import click

from ovspec.bench.prompt import DEFAULT_MODES, MODES, OURS, PromptBench
from ovspec.bench.prompt_report import PromptReport
from ovspec.bench.rounds import name_of
from ovspec.cli.options.bench import (
    context_option,
    read_source,
    run_and_show,
    source_options,
    usual_contexts,
)
from ovspec.cli.options.common import int_list, json_option, properties_from, property_option
from ovspec.cli.options.forms import default_option


@click.command()
@source_options
@context_option(str, "512,4096,16384", "Tokens of a prompt.")
@default_option("--mode", ",".join(DEFAULT_MODES), f"What to time: {', '.join(MODES)}.")
@default_option("--repeat", 5, "Timed prompts per figure.")
@default_option("--max-new-tokens", 1, "Of an answer; from 2 on, plain decoding is timed too.")
@property_option
@json_option
def prompt(
    context: str | None,
    mode: str,
    repeat: int,
    max_new_tokens: int,
    properties: tuple[str, ...],
    json_path: str | None,
    **options: Any,
) -> None:
    """Time reading a prompt, to its first token, and plain decoding after it; the modes run in turn.

    genai, genai_sdpa: OpenVINO GenAI with paged attention and with its other backend. stock: ovspec's
    pipeline with OpenVINO's operations alone. dense: ovspec. sparse: `--prefill sparse`, which is lossy.
    dense:256 reads chunks of 256 tokens (`max_num_batched_tokens`); stock and sparse take such a number too.
    Ratios are to the first mode. Prompts are random: this measures time, not quality.
    """
    source = read_source(options)
    if context is None:
        contexts = usual_contexts(source, max_new_tokens, 512, 4096, 16384)
    else:
        contexts = int_list("--context", context)
    bench = PromptBench(
        source=source,
        contexts=contexts,
        modes=tuple(mode.split(",")),
        repeat=repeat,
        max_new_tokens=max_new_tokens,
        properties=properties_from(properties),
    )
    run_and_show(
        bench, json_path, native=any(name_of(mode) in OURS for mode in bench.modes), report_of=PromptReport
    )
