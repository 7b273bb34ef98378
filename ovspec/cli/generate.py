"""`ovspec generate`: stream the answer to a prompt."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from ovspec.cli.drafting import Drafting, drafting_from, drafting_options, mode_from
from ovspec.cli.help import ShortHelpCommand, option_group
from ovspec.cli.options import backend_options, model_option, properties_from, verify_from, verify_options
from ovspec.generation.metrics import PerfMetrics
from ovspec.generation.results import DecodedResults
from ovspec.pipeline.draft_model import draft_model as name_draft_model
from ovspec.pipeline.pipeline import LLMPipeline
from ovspec.runtime.attention_config import Attention
from ovspec.runtime.expert_budgets import ExpertBackend
from ovspec.runtime.ffn_budgets import FfnBackend
from ovspec.runtime.linear_backend import LinearBackend
from ovspec.verify.verify_mode import VerifyMode

SAMPLING_OPTIONS = [
    click.option("--do-sample", is_flag=True, help="Sample instead of greedy decoding."),
    click.option("--temperature", type=float, help="Sampling temperature.  [default: 1.0]"),
    click.option("--top-p", type=float, help="Nucleus sampling.  [default: 1.0]"),
    click.option("--top-k", type=int, help="Sample from the k most probable tokens."),
    click.option("--min-p", type=float, help="Drop tokens below this share of the largest probability."),
    click.option(
        "--repetition-penalty", type=float, help="Penalty on tokens of prompt and output.  [default: 1.0]"
    ),
    click.option("--seed", type=int, help="Seed of the random streams.  [default: 0]"),
]
COMMON = (
    *("model", "prompt", "prompt_file", "max_new_tokens", "do_sample", "temperature", "seed", "stop_strings"),
    *("draft_model", "drafter", "verify", "budget", "properties", "as_json"),
)


@click.command(cls=ShortHelpCommand, common=COMMON)
@model_option
@click.option("-p", "--prompt", help="The prompt.  [default: standard input]")
@click.option("--prompt-file", type=click.Path(path_type=Path), help="File with the prompt.")
@click.option("--max-new-tokens", type=int, default=100, show_default=True, help="Most tokens to generate.")
@click.option(
    "--max-context", type=int, help="Tokens of prompt and answer for which memory must suffice; see info."
)
@click.option("--stop-string", "stop_strings", multiple=True, help="Text that ends the output; repeatable.")
@click.option("--ignore-eos", is_flag=True, help="Generate past the end-of-sequence token.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with text and metrics.")
@option_group("Sampling", SAMPLING_OPTIONS)
@drafting_options
@verify_options
@backend_options
def generate(
    model: Path,
    prompt: str | None,
    prompt_file: Path | None,
    max_context: int | None,
    device: str,
    attention: Attention,
    experts: ExpertBackend | None,
    ffn: FfnBackend | None,
    linear: LinearBackend | None,
    properties: tuple[str, ...],
    as_json: bool,
    commit_interval: int | None,
    **options: Any,
) -> None:
    """Stream the answer to a prompt; figures go to standard error."""
    mode = mode_from(options["verify"], verify_from(options), commit_interval)
    drafting = drafting_from(model, options)
    settings = generation_options(options)
    text = read_prompt(prompt, prompt_file)
    pipeline = LLMPipeline(
        model,
        device,
        draft_model=name_draft_model(drafting.model) if drafting.model else None,
        drafter=drafting.choice,
        verify=mode,
        attention=attention,
        max_context=max_context,
        experts=experts,
        ffn=ffn,
        linear=linear,
        **properties_from(properties),
    )
    streamer = None if as_json else print_piece
    results = pipeline.generate([text], streamer=streamer, **settings)
    if as_json:
        click.echo(json.dumps(report(results, pipeline.verify, drafting), indent=2))
    else:
        click.echo()
        click.echo(summary_line(results.perf_metrics), err=True)


def print_piece(piece: str) -> None:
    """Streamer that writes to standard output."""
    sys.stdout.write(piece)
    sys.stdout.flush()


def generation_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, as fields of a generation configuration.

    Raises:
        ValueError: a sampling option without `--do-sample`.
    """
    fields = {name: value for name, value in options.items() if value is not None and value != ()}
    # A folder's generation_config.json may set do_sample; the command samples only with --do-sample.
    fields["do_sample"] = options["do_sample"]
    for name in ("temperature", "top_p", "top_k", "min_p", "seed"):
        if name in fields and not options["do_sample"]:
            raise ValueError(
                f"--{name.replace('_', '-')} {fields[name]} needs --do-sample: greedy decoding ignores it"
            )
    if "seed" in fields:
        fields["rng_seed"] = fields.pop("seed")
    return fields


def read_prompt(prompt: str | None, prompt_file: Path | None) -> str:
    """The prompt's text from the option, the file or standard input.

    Raises:
        ValueError: both options, a file that can't be read, or nothing at all.
    """
    if prompt is not None and prompt_file is not None:
        raise ValueError("--prompt and --prompt-file exclude each other: give one")
    if prompt_file is not None:
        try:
            prompt = prompt_file.read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(
                f"--prompt-file {prompt_file}: {error.strerror}; give a file that can be read"
            ) from error
        except UnicodeDecodeError as error:
            raise ValueError(f"--prompt-file {prompt_file} is not UTF-8 ({error}); convert it") from error
    if prompt is None:
        if sys.stdin.isatty():
            raise ValueError("no prompt: give --prompt TEXT, --prompt-file FILE, or pipe text in")
        try:
            prompt = sys.stdin.buffer.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"the prompt on standard input is not UTF-8 ({error}); convert it") from error
    if not prompt.strip():
        raise ValueError("the prompt is empty: give --prompt TEXT or --prompt-file FILE")
    return prompt


def summary_line(metrics: PerfMetrics) -> str:
    """One line of figures; it says if the output may differ from the model's own."""
    parts = [
        f"{metrics.get_num_generated_tokens()} tokens",
        f"{metrics.get_throughput().mean:.1f} tokens/s",
        f"first token {metrics.get_ttft().mean:.0f} ms",
    ]
    if metrics.raw_metrics.num_drafts:
        parts.append(f"mean acceptance length {metrics.get_mean_acceptance_length():.2f}")
    if 0.0 < metrics.get_drafting_share() < 0.5:
        parts.append(f"drafting paid in {metrics.get_drafting_share():.0%} of the steps only")
    if metrics.get_acceptance_collapses():
        parts.append(f"acceptance COLLAPSED {metrics.get_acceptance_collapses()} times")
    if metrics.get_attention_density() < 1.0:
        parts.append(f"attention density {metrics.get_attention_density():.2f}")
    if metrics.get_experts_read():
        share = metrics.get_expert_density()
        parts.append(f"{metrics.get_experts_read():.1f} experts a layer read, density {share:.2f}")
    if metrics.raw_metrics.channels_held:
        parts.append(f"ffn density {metrics.get_ffn_density():.2f}")
    if metrics.get_num_commits():
        confirmed, provisional = metrics.get_num_confirmed_tokens(), metrics.get_num_provisional_tokens()
        parts.append(f"{metrics.get_num_commits()} commits: {confirmed} of {provisional} tokens confirmed")
    if metrics.why_lossy:
        parts.append(f"LOSSY: {metrics.why_lossy}")
    if metrics.identity_breakers:
        parts.append(f"identity not promised: {'; '.join(metrics.identity_breakers)}")
    return "[" + ", ".join(parts) + "]"


def report(results: DecodedResults, verify: VerifyMode, drafting: Drafting) -> dict[str, object]:
    """The JSON object of `--json`."""
    metrics = results.perf_metrics
    return {
        "text": results.texts[0],
        "finish_reason": results.finish_reasons[0].name,
        "verify": str(verify),
        "lossless": not metrics.why_lossy and not metrics.identity_breakers,
        "drafter": drafting.choice.name if drafting.choice else None,
        "draft_model": str(drafting.model) if drafting.model else None,
        "metrics": metrics.summary(),
    }
