"""`ovspec batch`: a file of requests in OpenAI's batch format."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click

from ovspec.cli.options.adapters import beside, served_adapter_option, served_adapters
from ovspec.cli.options.common import cache_size_option
from ovspec.cli.options.extras import need_extra
from ovspec.cli.options.forms import COUNT, PATH, default_option, typed_option
from ovspec.cli.options.help import ShortHelpCommand
from ovspec.cli.options.output import with_progress
from ovspec.cli.options.pipeline import max_context_option, pipeline_options, serving_pipeline
from ovspec.cli.options.ray import cluster_from, ray_options, replicas_of_a_machine
from ovspec_models.sources import model_name

COMMON = (
    *("model", "served_model_name", "chat_template", "max_num_seqs", "draft_model", "drafter", "verify"),
    *("budget", "properties"),
)

NOT_ALL_ANSWERED = 3


@dataclass(slots=True)
class BatchSummary:
    """What a run did.

    Attributes:
        answered: requests that it answered.
        refused: requests whose answer is an error.
        tokens: of their answers.
        lossy: answers whose text may differ from the model's own.
        tried_again: requests that failed beside others by no fault of theirs.
    """

    answered: int = 0
    refused: int = 0
    tokens: int = 0
    lossy: int = 0
    tried_again: int = 0
    started: float = field(default_factory=time.perf_counter)

    def add(self, status: int, body: dict[str, Any]) -> None:
        """Count what was written for a request."""
        if status == 200:
            self.answered += 1
            self.tokens += body["usage"]["completion_tokens"]
            self.lossy += body["metrics"]["is_lossy"]
        else:
            self.refused += 1

    def line(self, left: int) -> str:
        """All of it; `left` are the requests that stay without an answer."""
        seconds = time.perf_counter() - self.started
        lossy = f"{self.lossy} lossy" if self.lossy else "none lossy"
        again = f", {self.tried_again} tried again" if self.tried_again else ""
        rest = f", {left} left for the next run" if left else ""
        return (
            f"{self.answered} answered ({lossy}), {self.refused} refused{again}{rest}; {self.tokens} tokens "
            f"in {seconds:.1f} s"
        )


@click.command(cls=ShortHelpCommand, common=COMMON)
@click.argument("requests", metavar="IN.jsonl", type=PATH)
@click.argument("answers", metavar="OUT.jsonl", type=PATH)
@click.option("--served-model-name", metavar="NAME", help="[default: the folder's name]")
@typed_option("--chat-template", PATH, "In place of the model's.", metavar="FILE")
@default_option("--max-num-seqs", 16, "Answers made at the same time.", type=COUNT)
@cache_size_option
@max_context_option
@served_adapter_option
@ray_options
@pipeline_options
def batch(requests: Path, answers: Path, **options: Any) -> int:
    """Answer the requests of IN.jsonl into OUT.jsonl, in OpenAI's batch format.

    What is written stays: a run that was ended goes on where it was when it is started again. A request that
    is refused has its error in OUT.jsonl, as a server with --strict-fields would answer it. One that fails by
    no fault of its own is tried again, and left for the next run where it fails twice. The exit code is 3
    where requests were refused or are left.
    """
    need_extra("serve", "starlette", "pydantic", "prometheus_client")
    from ovspec.serve.batch import BatchModel
    from ovspec.serve.batch_file import BatchOutput, read_batch
    from ovspec.serve.served_model import read_template

    entries, template = read_batch(requests), read_template(options.pop("chat_template"))
    name = options.pop("served_model_name") or model_name(options["model"])
    adapters = served_adapters(options, name)
    options["adapters"] = beside(adapters)
    cluster = cluster_from(options)
    most, bound, folder = options.pop("max_num_seqs"), options.pop("cache_size"), options["model"]
    load = partial(serving_pipeline, options, most, bound, replicas_of_a_machine(cluster))
    open_model = partial(BatchModel, load, folder, name, template, most, adapters)
    with BatchOutput(answers, entries) as output:
        left = [entry for entry in entries if entry.custom_id not in output.done]
        before = f"{len(output.done) - len(output.refused)} are answered already"
        if output.refused:
            before += (
                f", {len(output.refused)} were refused (their errors are in {answers}; remove those lines to "
                "ask again)"
            )
        click.echo(f"ovspec: {len(entries)} requests, {before}", err=True)
        summary = BatchSummary()

        def run(advance: Any) -> None:
            def write(custom_id: str, status: int, body: dict[str, Any]) -> None:
                output.write(custom_id, status, body)
                summary.add(status, body)
                advance(custom_id)

            if cluster is None:
                with closing(open_model()) as model:
                    summary.tried_again = model.answer(left, write)
                return
            from ovspec.serve.cluster.batch import answer_on_cluster

            answer_on_cluster(open_model, left, write, most, cluster[1], cluster[2])

        if left:
            with_progress(len(left), run)
        unanswered = len(entries) - len(output.done)
        done = summary.line(unanswered) if left else "nothing is left to do"
        click.echo(f"ovspec: {done}", err=True)
        return NOT_ALL_ANSWERED if unanswered or output.refused else 0
