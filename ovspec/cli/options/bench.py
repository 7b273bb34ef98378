"""Options that the benchmarks share."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from ovspec.bench.plot import check_plot
from ovspec.bench.source import ModelSource
from ovspec.cli.options.forms import MODEL, Whole, typed_option
from ovspec.cli.options.help import GENERAL, Command, option_group
from ovspec.cli.options.output import show_report, with_progress
from ovspec_models.shapes import SHAPES
from ovspec_models.synthetic import WEIGHT_FORMATS
from ovspec_ops.self_check import self_check

# Ends of names of files that a model's folder holds.
_OF_A_MODEL = (".xml", ".bin", "config.json", "tokenizer.json")
SIZES = ("layers", "vocab_size", "weight_format")


source_options = option_group(
    GENERAL,
    typed_option("--model", MODEL, "Folder of an exported model, GGUF file, or hub id."),
    click.option("--shape", metavar="NAME", help=f"Random weights instead: {', '.join(SHAPES)}."),
    typed_option("--layers", Whole(1), "With --shape: fewer layers than the real model has."),
    typed_option("--vocab-size", Whole(1), "With --shape: another vocabulary than 32000."),
    typed_option(
        "--weight-format", click.Choice(WEIGHT_FORMATS), "With --shape: format of the weights.  [int8]"
    ),
)


def read_source(options: dict[str, Any]) -> ModelSource:
    """The model to time, from the options of `source_options`, which are taken out."""
    model, shape = options.pop("model"), options.pop("shape")
    sizes = {f"--{name.replace('_', '-')}": options.pop(name) for name in SIZES}
    if (model is None) == (shape is None):
        given = "both" if model else "none"
        raise ValueError(f"give either --model DIR or --shape NAME ({', '.join(SHAPES)}), got {given}")
    if shape is not None:
        return ModelSource.from_shape(shape, *sizes.values())
    for name, value in sizes.items():
        if value is not None:
            raise ValueError(f"{name} {value} needs --shape: the model in {model} has fixed sizes")
    return ModelSource.from_folder(model)


def usual_contexts(source: ModelSource, new_tokens: int, *contexts: int) -> tuple[int, ...]:
    """The contexts of a default, each as far as the model has positions with `new_tokens` behind it."""
    most = max(1, source.max_position_embeddings - new_tokens)
    return tuple(sorted({min(context, most) for context in contexts}))


def context_option(kind: Any, usual: str, help_text: str) -> Callable[[Command], Command]:
    """`--context`, whose default is `usual`, or fewer where the model has fewer positions."""
    return typed_option("--context", kind, f"{help_text}  [{usual}, or fewer]")


def check_outputs(json_path: str | None, plot: Path | None = None) -> None:
    """Refuse files of `--json` and `--plot` that cannot be written, before the measurement starts."""
    if plot is not None and json_path is not None and plot.absolute() == Path(json_path).absolute():
        raise ValueError(f"--json {json_path} and --plot {plot} are one file; name two")
    if json_path not in (None, "-"):
        check_writable("--json", Path(str(json_path)))
    if plot is not None:
        check_writable("--plot", plot)
        check_plot(plot)


def run_and_show(
    bench: Any, json_path: str | None, native: bool = True, report_of: Callable[[Any, Any], Any] | None = None
) -> Any:
    """Run a benchmark with a progress bar, and print its report or write it to the file of `--json`.

    Args:
        native: whether it runs native operations, which are checked first.
        report_of: makes the report of the bench and its measurements; `None`: `run` returns the report.
            It has `as_json`, `lines`, `table` and `notes`.
    """
    check_outputs(json_path)
    if native:
        check_operations()
    found = with_progress(bench.num_steps, bench.run)
    report = found if report_of is None else report_of(bench, found)
    show_report(report.as_json(), json_path, [report.table()], report.lines(), report.notes())
    return report


def check_writable(option: str, path: Path, read: Iterable[Path] = ()) -> None:
    """Refuse a file that cannot be written, or that the command reads, before the measurement starts.

    Args:
        read: files that are read, beside the values of the command's options.
    """
    if path.is_dir():
        raise ValueError(f"{option} {path}: is a folder; give a file's name")
    if path.exists() and not path.is_file():
        return  # a device or a pipe
    for value in (*click.get_current_context().params.values(), tuple(read)):
        # An option that is repeatable has several.
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, Path) and one is not path and _is_read_with(one, path):
                raise ValueError(f"{option} {path}: is the file that is read; give another")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ValueError(
            f"{option} {path}: the folder {path.parent} can't be written ({error.strerror}); give another"
        ) from error


def _is_read_with(read: Path, path: Path) -> bool:
    """Whether `path` is what is read, or a file of the model in that folder."""
    one = read / path.name if read.is_dir() and path.name.endswith(_OF_A_MODEL) else read
    return one.is_file() and path.is_file() and one.samefile(path)


def check_operations() -> None:
    """Refuse to time operations that compute wrong results."""
    failed = [f"{check.name} ({check.isa})" for check in self_check() if not check.ok]
    if failed:
        raise RuntimeError(
            f"the self-check of the native operations failed: {', '.join(failed)}; nothing is timed on wrong "
            "results, see `ovspec info --self-check`"
        )
