"""`ovspec bench serve`: latency and throughput of a server with OpenAI's interface."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from ovspec.bench.serve_client import ServeClient
from ovspec.bench.serve_load import ServeBench, random_prompts
from ovspec.cli.options.bench import run_and_show
from ovspec.cli.options.common import json_option
from ovspec.cli.options.forms import ABOVE_ZERO, COUNT, PATH, default_option, typed_option
from ovspec.eval.prompts import read_prompts

_MOST_WORDS = 10_000_000
# Fields of every request, and the options that decide them.
_SET_HERE = {
    "model": ", by --model",
    "max_tokens": ", by --max-tokens",
    "prompt": ", by --prompts",
    "messages": ", by --prompts and --chat",
    "stream": "",
    "stream_options": "",
}


@click.command()
@default_option("--base-url", "http://127.0.0.1:8000", "Address of the server.")
@click.option("--model", help="Name of the model.  [default: the first of the server]")
@click.option("--api-key", envvar="OVSPEC_API_KEY", metavar="KEY", help="[env: OVSPEC_API_KEY]")
@default_option("--num-prompts", 64, "Requests in all.", type=COUNT)
@default_option("--concurrency", 16, "Requests at a time.", type=COUNT)
@typed_option(
    "--request-rate", ABOVE_ZERO, "Requests that come per second, at random times.  [default: all at once]"
)
@default_option("--max-tokens", 128, "Of an answer.", type=COUNT)
@typed_option("--prompts", PATH, '{"prompt": "..."} per line.', metavar="FILE.jsonl")
@default_option("--prompt-words", 64, "Random words, without --prompts.", type=COUNT)
@click.option("--chat", is_flag=True, help="Send the prompts as messages, to /v1/chat/completions.")
@click.option(
    "--extra",
    multiple=True,
    metavar="FIELD=JSON",
    help="Field of the requests, e.g. ignore_eos=true; repeatable.",
)
@json_option
def serve(
    base_url: str,
    model: str | None,
    api_key: str | None,
    prompts: Path | None,
    prompt_words: int,
    extra: tuple[str, ...],
    json_path: str | None,
    **options: Any,
) -> int:
    """Measure a server under load: TTFT, TPOT, ITL, E2EL, acceptance.

    Speculation sends several tokens in a chunk, so that times between chunks and between tokens differ:
    ITL is given for both. Acceptance is what the server says of itself (vLLM's field `metrics`). Any server
    with OpenAI's interface can be measured. Exits with 1 if a request failed.
    """
    client, fields = ServeClient(base_url, api_key), extra_fields(extra)
    if prompts is not None:
        texts = [prompt.text for prompt in read_prompts(prompts)]
    else:
        if options["num_prompts"] * prompt_words > _MOST_WORDS:
            raise ValueError(
                f"--num-prompts {options['num_prompts']} of --prompt-words {prompt_words}: expected at most "
                f"{_MOST_WORDS:,} words in all; give fewer, or --prompts FILE"
            )
        texts = random_prompts(options["num_prompts"] + 1, prompt_words, seed=time.time_ns())
    bench = ServeBench(client, model or client.model(), texts, extra={"temperature": 0, **fields}, **options)
    report = run_and_show(bench, json_path, native=False)
    return 1 if report.errors else 0


def extra_fields(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Fields of repeated `--extra FIELD=JSON` options.

    Raises:
        ValueError: something else, a field twice, or one that the command sets itself.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        try:
            found[name] = json.loads(value)
        except ValueError:
            equals = ""
        if not name or not equals:
            raise ValueError(f"--extra {pair}: expected FIELD=JSON, such as ignore_eos=true")
        if name in _SET_HERE:
            raise ValueError(f"--extra {pair}: the command sets {name} itself{_SET_HERE[name]}; leave it out")
        if sum(other.partition("=")[0] == name for other in pairs) > 1:
            raise ValueError(f"--extra {name} is given twice: leave one out")
    return found
