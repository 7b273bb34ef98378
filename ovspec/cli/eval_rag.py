"""`ovspec eval rag`: plain and speculative RAG on questions with answers."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ovspec.cli.options.bench import check_outputs
from ovspec.cli.options.common import json_option
from ovspec.cli.options.forms import COUNT, PATH, typed_option
from ovspec.cli.options.help import ShortHelpCommand
from ovspec.cli.options.output import show_report, with_progress
from ovspec.cli.options.pipeline import pipeline_options
from ovspec.cli.options.rag import RagPipelines, settings_options, store_option
from ovspec.rag.evaluation import evaluate
from ovspec.rag.evaluation_report import EvaluationReport
from ovspec.rag.questions import read_questions

COMMON = (
    *("model", "store", "draft_model", "limit", "num_documents", "num_drafts", "documents_per_draft"),
    *("properties", "json_path"),
)


@click.command("rag", cls=ShortHelpCommand, common=COMMON)
@click.argument("questions", type=PATH, metavar="FILE.jsonl")
@store_option
@typed_option("--limit", COUNT, "Only the first questions of the file.")
@json_option
@settings_options
@pipeline_options
def rag(questions: Path, store: Path, limit: int | None, json_path: str | None, **options: Any) -> None:
    """Compare plain and speculative RAG: accuracy, latency, tokens that the target reads.

    A line of the file is {"question": "...", "answers": ["...", ...]}. An answer is right if it contains one
    of them. Speculative RAG is measured with the question read once for all drafts and once for each.
    """
    asked = read_questions(questions)[:limit]
    check_outputs(json_path)
    pipelines = RagPipelines.of(options, "speculative")
    with pipelines.open(store, shown=json_path != "-") as answers:
        examples = with_progress(len(asked), lambda step: evaluate(answers, asked, step))
    setting = {
        "model": str(pipelines.choice.model),
        "draft_model": str(pipelines.draft or pipelines.choice.model),
        "store": str(store),
        "settings": asdict(pipelines.settings),
    }
    report = EvaluationReport(examples, setting)
    show_report(report.as_json(), json_path, report.tables(), notes=report.notes())
