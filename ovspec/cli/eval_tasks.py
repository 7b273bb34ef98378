"""`ovspec eval tasks`: scores, agreement and speed of lossy settings on tasks with references."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import click

from ovspec.cli.options.bench import check_outputs
from ovspec.cli.options.common import int_list, json_option
from ovspec.cli.options.drafting import drafting_fields
from ovspec.cli.options.forms import COUNT, PATH, typed_option
from ovspec.cli.options.help import Command, ShortHelpCommand
from ovspec.cli.options.output import show_report, with_progress
from ovspec.cli.options.pipeline import PipelineChoice, pipeline_options
from ovspec.devices.devices import is_cpu, openvino_core
from ovspec.eval.needles import needle_examples, sentences_of
from ovspec.eval.setting import Setting
from ovspec.eval.suites import first_of_each, read_suites
from ovspec.eval.task_settings import NAMES, Parts
from ovspec.eval.tasks import TasksEval
from ovspec.generation.inputs import read_tokenizer, tokenized
from ovspec.graphs.compile import read_model
from ovspec.pipeline.pipeline import LLMPipeline
from ovspec_models import ModelInfo, OvspecConfig
from ovspec_models.folder.sparse_verify import SparseVerify
from ovspec_transforms import ffn_layers, moe_layers

COMMON = (
    *("model", "suite", "needles", "setting", "limit", "context"),
    *("budget", "expert_budget", "ffn_density", "json_path"),
)
# --setting says what is verified and read how.
_SET_HERE = {"verify": "sparse", "prefill": "sparse", "commit_interval": None}


def _options(command: Command) -> Command:
    """The options of the pipeline but those that settings decide."""
    command = pipeline_options(command)
    parameters: list[click.Parameter] = command.__click_params__  # type: ignore[attr-defined]
    parameters[:] = [parameter for parameter in parameters if parameter.name not in _SET_HERE]
    return command


@click.command(cls=ShortHelpCommand, common=COMMON)
@typed_option("--suite", PATH, "Tasks, .json or .jsonl; repeatable.", multiple=True, metavar="FILE")
@click.option(
    "--needles",
    metavar="N[,N...]",
    help="Hide a number in texts of so many tokens, at five depths, and ask for it.",
)
@typed_option("--filler", PATH, "Text that hides it.  [default: a story of Conan Doyle's]", metavar="FILE")
@click.option(
    "--setting", metavar="NAME[,NAME...]", help=f"{', '.join(NAMES)}.  [default: those the model has]"
)
@typed_option("--limit", COUNT, "Only the first examples of each task.")
@typed_option("--max-new-tokens", COUNT, "Tokens of an answer.  [default: 32, 128 or 256, by metric]")
@typed_option("--context", COUNT, "Cut tokens out of the middle of longer prompts.")
@json_option
@_options
def tasks(
    suite: tuple[Path, ...],
    needles: str | None,
    filler: Path | None,
    setting: str | None,
    limit: int | None,
    max_new_tokens: int | None,
    context: int | None,
    json_path: str | None,
    **options: Any,
) -> None:
    """Compare lossy settings with dense decoding on tasks: scores, agreement, speed.

    A file has tasks in the form of ovspec ("prompt" or "messages", "answers" or "reference", "metric",
    "category"), Spec-Bench, QMSum, GSM8K or SQuAD. The settings are: attention, experts and channels, each
    alone, all of these together, and sparse prompts; amounts that are not given are calibrated or default
    ones. A round has 5 draft tokens by default.
    """
    if not suite and needles is None:
        raise ValueError("there is nothing to ask; give --suite FILE, or --needles LENGTHS")
    if filler is not None and needles is None:
        raise ValueError(f"--filler {filler} needs --needles LENGTHS")
    check_outputs(json_path)
    names = None if setting is None else _names(setting)
    lengths = () if needles is None else int_list("--needles", needles)
    hidden_in = _sentences(filler)
    examples = read_suites(suite)
    options.update(_SET_HERE)
    choice = PipelineChoice.of(options)
    settings, left_out = _parts(choice).settings(names)
    if lengths:
        tokenizer = read_tokenizer(choice.model)
        examples += needle_examples(
            lengths, hidden_in, lambda text: len(tokenized(tokenizer, text, special_tokens=False))
        )
    evaluation = TasksEval(
        model=choice.model,
        make_pipeline=lambda setting: _pipeline(choice, setting),
        settings=settings,
        examples=first_of_each(examples, limit),
        left_out=left_out,
        drafter=choice.drafter.name if choice.drafter else None,
        drafting=drafting_fields(options, choice.drafter is not None),
        max_new_tokens=max_new_tokens,
        context=context,
    )
    report = with_progress(evaluation.num_steps, evaluation.run)
    show_report(report.as_json(), json_path, report.tables(), report.lines(), report.notes())


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in NAMES:
            raise ValueError(f"--setting {text}: {name!r} is not one of {', '.join(NAMES)}")
    if len(set(names)) < len(names):
        raise ValueError(f"--setting {text}: name each setting once")
    return names


def _sentences(filler: Path | None) -> list[str]:
    if filler is not None:
        return sentences_of(f"--filler {filler}", lambda: filler.read_bytes().decode("utf-8-sig"))
    story = files("ovspec.cli").joinpath("demo_story.txt")
    return sentences_of("the built-in story", lambda: story.read_text(encoding="utf-8"))


def _parts(choice: PipelineChoice) -> Parts:
    """What the model has that can be sparse, with the amounts that were given."""
    assert isinstance(choice.verify, SparseVerify)
    assert choice.prefill is not None
    model = read_model(openvino_core(), ModelInfo.read(choice.model).folder)
    config = OvspecConfig.load(choice.model)
    attention, device = choice.arguments["attention"], choice.arguments["device"]
    return Parts(
        choice.verify,
        choice.prefill,
        config,
        experts=bool(moe_layers(model)),
        channels=bool(ffn_layers(model)),
        native=attention != "stock" and is_cpu(device),
    )


def _pipeline(choice: PipelineChoice, setting: Setting) -> LLMPipeline:
    return replace(choice, prefill=setting.prefill).start(setting.verify)
