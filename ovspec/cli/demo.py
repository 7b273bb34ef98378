"""`ovspec demo`: OpenVINO GenAI and the ways of ovspec to speed a model up, side by side."""

from __future__ import annotations

import click

from ovspec.cli.embedded_demo import run_embedded
from ovspec.cli.options.bench import check_outputs
from ovspec.cli.options.common import json_option
from ovspec.cli.options.forms import default_option
from ovspec.cli.real_demo import run_real


@click.command()
@click.option("--embedded", is_flag=True, help="With the small pair that ovspec carries: nothing is fetched.")
@default_option("--max-new-tokens", 96, type=click.IntRange(2, 1024))
@json_option
def demo(embedded: bool, max_new_tokens: int, json_path: str | None) -> int:
    """Generate with a real model, SmolLM2-135M-Instruct: OpenVINO GenAI plain and with prompt lookup, ovspec
    plain, with drafts from the text, and sparsely verified, behind a story of 6,000 tokens and short prompts.

    The model comes out of a package of the Python index; a refusal says how to fetch it. Fails if the text of
    a lossless mode differs from the plain one.
    """
    check_outputs(json_path)
    run = run_embedded if embedded else run_real
    differing = run(max_new_tokens, json_path)
    if differing:
        click.echo(f"ovspec: error: the {differing[0]} text differs from the plain text", err=True)
        return 1
    return 0
