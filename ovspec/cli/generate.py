"""`ovspec generate`: stream the answer to a prompt."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from openvino_genai import ChatHistory

from ovspec.cli.options.adapters import adapter_option, adapters_from
from ovspec.cli.options.drafting import DRAFTING
from ovspec.cli.options.forms import PATH, typed_option
from ovspec.cli.options.help import ShortHelpCommand
from ovspec.cli.options.output import print_json
from ovspec.cli.options.pipeline import (
    PipelineChoice,
    answer_options,
    beam_options,
    generation_options,
    pipeline_as,
    pipeline_from,
    pipeline_options,
    prefix_option,
)
from ovspec.cli.options.structure import structure_from, structure_options
from ovspec.cli.options.waiting import reading
from ovspec.drafters import NONE
from ovspec.eval.in_force import SelectionInForce, prefill_in_force, verify_in_force
from ovspec.generation.metrics import PerfMetrics
from ovspec.generation.results import FINISH_WORDS, DecodedResults
from ovspec.modes.verify_mode import VerifyMode
from ovspec.pipeline.loaded_pipeline import LoadedPipeline
from ovspec.pipeline.pipeline import LLMPipeline
from ovspec.pipeline.vlm_pipeline import VLMPipeline
from ovspec.vision.pictures import read_picture
from ovspec_models.folder.jsonl import json_line, json_lines, read_utf8
from ovspec_models.folder.sparse_verify import SparseVerify

COMMON = (
    *("model", "prompt", "prompt_file", "max_new_tokens", "do_sample", "temperature", "draft_model"),
    *("drafter", "verify", "budget", "properties", "as_json"),
)


@click.command(cls=ShortHelpCommand, common=COMMON)
@click.option("-p", "--prompt", help="The prompt.  [default: standard input]")
@typed_option("--prompt-file", PATH, "File with the prompt.")
@click.option(
    "--image", "images", type=PATH, multiple=True, help="Picture that the prompt is about; repeatable."
)
@click.option("--system", help="System message in front of the prompt, through the model's chat template.")
@click.option(
    "--jsonl",
    metavar="FILE",
    help="Answer every line of FILE, an object with a prompt (-: standard input); print a line for each.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with text and metrics.")
@prefix_option
@adapter_option
@structure_options
@pipeline_options
@answer_options
@beam_options
def generate(
    prompt: str | None,
    prompt_file: Path | None,
    images: tuple[Path, ...],
    system: str | None,
    jsonl: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Stream the answer to a prompt; figures go to standard error."""
    if jsonl is not None:
        if prompt is not None or prompt_file is not None or images or as_json:
            raise ValueError(
                "--jsonl excludes --prompt, --prompt-file, --image and --json: the file has the prompts"
            )
        requests = read_requests(jsonl)
    else:
        text = read_prompt(prompt, prompt_file)
    several = any((options[name] or 1) > 1 for name in ("num_beams", "num_return_sequences"))
    if (options["num_beams"] or 1) > 1:
        leave_drafts_out(options)
    options["adapters"] = adapters_from(options)
    options["structured_output_config"] = structure_from(options)
    streamer = None if as_json or several else print_piece
    if images:
        answer_about(images, text, system, as_json, streamer, options)
        return
    pipeline, choice = pipeline_from(options, shown=not as_json)
    settings = generation_options(options)
    if jsonl is not None:
        answer_lines(requests, system, pipeline, choice, settings)
        return
    with reading(shown=not as_json) as progress:
        results = pipeline.generate(
            turn(text, system), streamer=streamer, prompt_progress=progress, **settings
        )
    show(results, pipeline, choice, settings, as_json, streamer is not None)


def answer_about(
    images: Sequence[Path],
    text: str,
    system: str | None,
    as_json: bool,
    streamer: Callable[[str], None] | None,
    options: dict[str, Any],
) -> None:
    """Answer a prompt about pictures."""
    pictures = [read_picture(file) for file in images]
    pipeline, choice = pipeline_as(VLMPipeline, options, shown=not as_json)
    settings = generation_options(options)
    with reading(shown=not as_json) as progress:
        results = pipeline.generate(
            text if system is None else history(text, system),
            images=pictures,
            streamer=streamer,
            prompt_progress=progress,
            **settings,
        )
    show(results, pipeline, choice, settings, as_json, streamer is not None)


def show(
    results: DecodedResults,
    pipeline: LoadedPipeline,
    choice: PipelineChoice,
    settings: dict[str, Any],
    as_json: bool,
    streamed: bool,
) -> None:
    """Print what is known of an answer behind it, or all of it as JSON."""
    if as_json:
        print_json(report(results, pipeline, choice))
    else:
        click.echo("" if streamed else str(results))
        click.echo(summary_line(results.perf_metrics, pipeline.verify), err=True)
    if why := why_cut(results, choice, pipeline.max_model_len, settings["max_new_tokens"]):
        click.echo(f"[{why}]", err=True)


def leave_drafts_out(options: dict[str, Any]) -> None:
    """Beams are searched without drafts: take no drafter, and refuse one that was asked for."""
    for name in DRAFTING:
        if options[name] not in (None, "auto" if name == "draft_model" else NONE, NONE):
            raise ValueError(
                f"--{name.replace('_', '-')} {options[name]}: beams are searched without drafts; leave it "
                f"out, or --num-beams {options['num_beams']}"
            )
    options["drafter"] = options["draft_model"] = NONE


def answer_lines(
    requests: list[dict[str, Any]],
    system: str | None,
    pipeline: LLMPipeline,
    choice: PipelineChoice,
    settings: dict[str, Any],
) -> None:
    """Print a JSON object with its answer for every request of `--jsonl`."""
    cut = 0
    for request in requests:
        results = pipeline.generate(turn(request["prompt"], request.get("system", system)), **settings)
        answer = {**request, **report(results, pipeline, choice)}
        click.echo(json_line(json.dumps(answer, ensure_ascii=False)))
        cut += answer["finish_reason"] == "length"
    if cut:
        click.echo(
            f'[{cut} of {len(requests)} answers were cut, their finish_reason is "length": give more than '
            f"--max-new-tokens {settings['max_new_tokens']}, or shorter prompts]",
            err=True,
        )


def why_cut(results: DecodedResults, choice: PipelineChoice, positions: int, most: int) -> str | None:
    """What cut the answers of a call and how to get more; `None` for one that came to its end.

    Args:
        positions: tokens that prompt and answer may have together.
        most: of --max-new-tokens.
    """
    if "length" not in map(FINISH_WORDS.get, results.finish_reasons):
        return None
    if len(results.texts) > 1:
        return f"answers were cut; give more than --max-new-tokens {most} for the rest"
    count = results.perf_metrics.get_num_generated_tokens()
    if count >= most:
        return f"the answer was cut after {count} tokens; give more than --max-new-tokens {most} for the rest"
    given = choice.arguments.get("max_context") is not None
    limit = f"--max-context {positions}" if given else f"the model's {positions} positions"
    return f"the answer was cut after {count} tokens: with the prompt it fills {limit}; give a shorter prompt"


def turn(prompt: str, system: str | None) -> list[str] | ChatHistory:
    """The pipeline's input: the prompt, after the system message if there is one."""
    if system is None:
        return [prompt]
    return history(prompt, system)


def history(prompt: str, system: str) -> ChatHistory:
    """A chat of a system message and a prompt."""
    return ChatHistory([{"role": "system", "content": system}, {"role": "user", "content": prompt}])


def read_requests(name: str) -> list[dict[str, Any]]:
    """The lines of `--jsonl`: objects with a `prompt`, and a `system` message where one is given."""
    where = f"--jsonl {name}"
    read = sys.stdin.buffer.read if name == "-" else Path(name).read_bytes
    requests = []
    for number, value in json_lines(where, read):
        fields = value if isinstance(value, dict) else {}
        prompt, system = fields.get("prompt"), fields.get("system", "")
        if not isinstance(prompt, str) or not prompt.strip() or not isinstance(system, str):
            raise ValueError(
                f"{where}: line {number} holds no prompt; expected an object such as "
                '{"prompt": "...", "system": "..."}'
            )
        requests.append(value)
    if not requests:
        raise ValueError(f'{where} holds no line; write {{"prompt": "..."}} into each')
    return requests


def print_piece(piece: str) -> None:
    """Streamer that writes to standard output."""
    click.echo(piece, nl=False)


def read_prompt(prompt: str | None, prompt_file: Path | None) -> str:
    """The prompt's text from the option, the file or standard input."""
    if prompt is not None and prompt_file is not None:
        raise ValueError("--prompt and --prompt-file exclude each other: give one")
    if prompt_file is not None:
        file = prompt_file
        prompt = read_utf8(f"--prompt-file {file}", lambda: file.read_text(encoding="utf-8-sig"))
    if prompt is None:
        if sys.stdin.isatty():
            raise ValueError("no prompt: give --prompt TEXT, --prompt-file FILE, or pipe text in")
        prompt = read_utf8(
            "the prompt on standard input", lambda: sys.stdin.buffer.read().decode("utf-8-sig")
        )
    if not prompt.strip():
        held = "the prompt is" if prompt_file is None else f"--prompt-file {prompt_file} is"
        raise ValueError(f"{held} empty: give --prompt TEXT or --prompt-file FILE")
    return prompt


def summary_line(metrics: PerfMetrics, verify: VerifyMode) -> str:
    """One line of figures; it says if the output may differ from the model's own, or that all was read."""
    tokens, speed = metrics.get_num_generated_tokens(), metrics.get_throughput().mean
    parts = ["1 token" if tokens == 1 else f"{tokens} tokens"]
    if speed > 0:  # one token has none
        parts.append(f"{speed:.1f} tokens/s")
    parts.append(f"first token {metrics.get_ttft().mean:.0f} ms")
    if metrics.raw_metrics.num_drafts:
        parts.append(f"mean acceptance length {metrics.get_mean_acceptance_length():.2f}")
    if 0.0 < metrics.get_drafting_share() < 0.5:
        parts.append(f"drafting paid in {metrics.get_drafting_share():.0%} of the steps only")
    if metrics.get_attention_density() < 1.0:
        parts.append(f"attention density {metrics.get_attention_density():.2f}")
    elif isinstance(verify, SparseVerify) and metrics.raw_metrics.left_nothing_out:
        parts.append("sparse verification would have saved nothing: all was read, exact")
    if metrics.get_prefill_density() < 1.0:
        parts.append(f"prefill density {metrics.get_prefill_density():.2f}")
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


def report(results: DecodedResults, pipeline: LoadedPipeline, choice: PipelineChoice) -> dict[str, object]:
    """The JSON object of `--json`."""
    metrics = results.perf_metrics
    # Then nothing stands in for the model's own decoding.
    plain = choice.drafter is None and pipeline.verify == "dense"
    several = {}
    if len(results.texts) > 1 or any(results.scores):
        several = {"texts": results.texts, "scores": results.scores}
    return {
        "text": results.texts[0],
        **several,
        "finish_reason": FINISH_WORDS[results.finish_reasons[0]],
        "verify": verify_in_force(pipeline.verify, SelectionInForce.of(pipeline.runner)),
        "prefill": prefill_in_force(pipeline.prefill),
        "lossless": not metrics.why_lossy and (plain or not metrics.identity_breakers),
        "identity_promised": not metrics.why_lossy and not metrics.identity_breakers,
        "drafter": choice.drafter.name if choice.drafter else None,
        "draft_model": str(choice.draft) if choice.draft else None,
        "metrics": metrics.summary(),
    }
