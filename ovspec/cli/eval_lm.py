"""`ovspec eval lm`: tasks of lm-evaluation-harness on any setting of a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ovspec.cli.options.extras import need_extra
from ovspec.cli.options.forms import COUNT, PATH, typed_option
from ovspec.cli.options.help import ShortHelpCommand
from ovspec.cli.options.pipeline import max_context_option, pipeline_options, serving_pipeline_as
from ovspec.pipeline.pipeline import LLMPipeline

COMMON = (
    *("model", "tasks", "include_path", "limit", "draft_model", "drafter", "verify", "budget"),
    "properties",
)


@click.command(cls=ShortHelpCommand, common=COMMON)
@click.option(
    "--tasks", required=True, metavar="NAME[,NAME...]", help="Tasks of the harness, or of --include-path."
)
@typed_option("--include-path", PATH, "Folder with tasks of your own.", metavar="DIR")
@typed_option("--limit", COUNT, "Only the first examples of a task.")
@click.argument("harness", nargs=-1, metavar="[-- OPTIONS]")
@max_context_option
@pipeline_options
def lm(
    tasks: str, include_path: Path | None, limit: int | None, harness: tuple[str, ...], **options: Any
) -> None:
    """Run tasks of lm-evaluation-harness on a pipeline: log-likelihoods, perplexity, answers.

    What stands behind -- goes to the harness (`lm_eval run`) as it is, e.g. -- --num_fewshot 5.
    Tasks whose data lie in local files need no network. With --verify sparse, likelihoods are those of sparse
    passes.
    """
    need_extra("eval", "lm_eval")
    if include_path is not None and not include_path.is_dir():
        raise ValueError(f"--include-path {include_path}: is no folder; give the one with the tasks' files")
    if any(word.split("=")[0] in ("--model", "--model_args", "-a") for word in harness):
        raise ValueError("--model and --model_args of the harness: the model is the pipeline; leave them out")
    arguments = ["--tasks", tasks]
    for name, value in (("--include_path", include_path), ("--limit", limit)):
        arguments += [] if value is None else [name, str(value)]
    folder = options["model"]
    pipeline = serving_pipeline_as(LLMPipeline, options)
    from ovspec.eval.harness import run_harness

    run_harness(pipeline, str(folder), [*arguments, *harness])
