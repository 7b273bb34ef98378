"""`ovspec rag`: a store of documents, and answers from it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from ovspec.cli.options.forms import COUNT, PATH, Whole, json_flag, typed_option
from ovspec.cli.options.help import ShortHelpCommand
from ovspec.cli.options.output import print_json, say
from ovspec.cli.options.pipeline import pipeline_options
from ovspec.cli.options.rag import RagPipelines, rag_options, store_option
from ovspec.cli.options.waiting import terminal_bar
from ovspec.rag import IndexChoices, IndexProgress, IndexReport, RagResult, index
from ovspec.rag.embedder import POOLINGS

# Seconds between lines of progress where there is no terminal.
_EVERY = 10.0


@click.group()
def rag() -> None:
    """Answer questions from your documents."""


@rag.command("index")
@click.argument("documents", nargs=-1, required=True, type=PATH, metavar="DIR...")
@store_option
@typed_option(
    "--embedding-model",
    PATH,
    "Folder of an OpenVINO model that makes vectors; without one, a new store finds by words alone.",
    metavar="DIR",
)
@typed_option(
    "--pooling",
    click.Choice(POOLINGS),
    "How it makes a vector of those of the tokens.  [default: as its folder says, else cls]",
)
@typed_option("--chunk-size", COUNT, "Characters of a chunk.  [default: the store's, or 1000]")
@typed_option("--chunk-overlap", Whole(0), "Characters that chunks repeat.  [default: the store's, or 200]")
@json_flag
def index_command(documents: tuple[Path, ...], store: Path, as_json: bool, **choices: Any) -> None:
    """Put the documents in DIR into the store FILE: text, Markdown, HTML, and PDF where pypdf is installed.

    What has not changed since the last time is left as it is; what is gone from DIR is taken out. A run that
    was killed goes on where it was.
    """
    with _progress() as progress:
        report = index(store, documents, IndexChoices(**choices), progress)
    if as_json:
        print_json(asdict(report))
    else:
        click.echo(f"{store}: {summary(report)}")


COMMON = (
    *("model", "store", "question", "draft_model", "mode", "num_documents", "num_drafts"),
    *("verify", "budget", "properties", "as_json"),
)


@rag.command(cls=ShortHelpCommand, common=COMMON)
@store_option
@click.option("-q", "--question", required=True, help="The question.")
@rag_options
@pipeline_options
@json_flag
def ask(store: Path, question: str, as_json: bool, **options: Any) -> None:
    """Answer a question from the store; figures go to standard error.

    speculative: the draft model drafts an answer with its rationale from each of some subsets of the
    documents, and the model chooses one without reading documents. plain: the model reads all of them.
    """
    pipelines = RagPipelines.of(options)
    with pipelines.open(store, shown=not as_json) as answers:
        result = answers.ask(question, pipelines.mode, **pipelines.options)
    if as_json:
        print_json(result.as_json())
        return
    click.echo(result.answer)
    for line in figures(result):
        click.echo(line, err=True)


def summary(report: IndexReport) -> str:
    """One line about an index."""
    parts = [
        f"{report.added} documents added",
        f"{report.changed} changed",
        f"{report.removed} removed",
        f"{report.unchanged} as before",
        f"{report.chunks} chunks written",
    ]
    if report.without_text:
        parts.append(f"{report.without_text} without text")
    if report.left_out:
        kinds = ", ".join(f"{count} {suffix}" for suffix, count in sorted(report.left_out.items()))
        pdf = "; PDFs need `pip install pypdf`" if ".pdf" in report.left_out else ""
        parts.append(f"left out: {kinds}{pdf}")
    return ", ".join(parts)


def figures(result: RagResult) -> list[str]:
    """Lines about an answer: sources, scores of the drafts, tokens and time."""
    lines = []
    used = range(len(result.documents)) if result.chosen is None else result.drafts[result.chosen].documents
    for place in used:
        found = result.documents[place]
        lines.append(f"[source: {found.path}, chunk {found.position}]")
    for place, one in enumerate(result.drafts):
        scores = "no answer"
        if one.rho is not None and one.rho_sc is not None and one.rho_sr is not None:
            scores = (
                f"rho {one.rho:.2f} = draft {one.rho_draft:.2f} + self-consistency {one.rho_sc:.2f} + "
                f"self-reflection {one.rho_sr:.2f}"
            )
        chosen = ", chosen" if place == result.chosen else ""
        lines.append(f"[draft {place + 1}{chosen}: {scores}: {' '.join(one.answer.split())}]")
    parts = [
        result.mode,
        f"{result.target_tokens} tokens read by the target",
        f"{result.durations.total:.0f} ms",
        f"retrieval {result.durations.retrieval:.0f} ms",
    ]
    if result.why_lossy:
        parts.append(f"LOSSY: {result.why_lossy}")
    return [*lines, f"[{', '.join(parts)}]"]


@contextmanager
def _progress() -> Iterator[Callable[[IndexProgress], None]]:
    """A bar of documents at a terminal; elsewhere a line of standard error now and then."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with terminal_bar(True, *columns) as bar:
        task = None if bar is None else bar.add_task("", total=None)
        last = time.monotonic()

        def show(found: IndexProgress) -> None:
            nonlocal last
            if bar is not None and task is not None:
                text = f"{found.chunks} chunks, documents"
                bar.update(task, completed=found.documents, total=found.total, description=text)
            elif time.monotonic() - last >= _EVERY:
                last = time.monotonic()
                say(f"{found.documents} of {found.total} documents, {found.chunks} chunks")

        yield show
