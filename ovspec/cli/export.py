"""`ovspec export`: export a Hugging Face checkpoint to a model folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ovspec.cli.options.forms import PATH, default_option, typed_option
from ovspec.cli.options.interrupts import ending_at_once
from ovspec.cli.options.output import say, warn
from ovspec_models import export_model
from ovspec_models.export.new_folder import check_new_folder, remove_unfinished
from ovspec_models.folder.files import at_home
from ovspec_models.heads import HEAD_KINDS, add_head, check_target, open_head
from ovspec_models.sources.gguf_file import is_gguf
from ovspec_models.sources.gguf_folder import export_gguf
from ovspec_models.sources.hub import HubName, fetch

_TASK = "text-generation-with-past"
# Formats in which heads are written, of those that models have.
_OF_HEADS = {"int4": "int8", "bf16": "fp16"}


@click.command()
@click.argument("out", type=PATH)
@click.option("-m", "--model", required=True, help="Model id or folder of a checkpoint, or GGUF file.")
@click.option("--draft-model", help="Model id or folder of the draft model, exported to OUT/draft.")
@click.option(
    "--eagle3", help="Folder of an EAGLE-3 head's checkpoint, exported to OUT/draft in place of a model."
)
@click.option("--dflash", help="The same for a DFlash head, also DSpark, DFlash2 or XPress.")
@click.option(
    "--mtp",
    help="The same for the MTP module in the target's checkpoint, or in a folder of optimum-intel 2.2.",
)
@click.option("--medusa", help="The same for Medusa heads: config.json, and *.safetensors, *.bin or *.pt.")
@click.option("--hydra", help="The same for Hydra heads: config.json, and *.safetensors, *.bin or *.pt.")
@default_option("--task", _TASK, "Task of the export.")
@typed_option(
    "--weight-format",
    click.Choice(["fp32", "fp16", "bf16", "int8", "int4"]),
    "Weights.  [default: optimum-intel's choice]",
)
@typed_option(
    "--group-size",
    int,
    "int4: weights that share a scale.  [default: 128, or the largest that divides all rows]",
)
@typed_option("--ratio", float, "int4: share of the layers that gets int4, the rest int8.")
@click.option("--sym", is_flag=True, help="Symmetric quantization.")
@click.option("--all-layers", is_flag=True, help="int4: embeddings and the last layer too.")
@typed_option(
    "--backup-precision",
    click.Choice(["none", "int8_sym", "int8_asym"]),
    "int4: what layers outside the ratio get.",
)
@click.option(
    "--dataset", help="int4: texts for the data-aware methods: a name, or a file with one per line."
)
@click.option("--awq", is_flag=True, help="int4: activation-aware weight quantization.")
@click.option("--scale-estimation", is_flag=True, help="int4: scale estimation.")
@click.option("--gptq", is_flag=True, help="int4: GPTQ.")
@click.option(
    "--sparse-moe", is_flag=True, help="Put ovspec's operation for routed experts into the target's IR."
)
@click.option(
    "--sparse-ffn", is_flag=True, help="The same for the feed-forward layers, whose weights it lays out anew."
)
@click.option(
    "--allow-partial", is_flag=True, help="Leave layers of an unknown form as they are, and name them."
)
@click.option("--trust-remote-code", is_flag=True, help="Run code that comes with the checkpoint.")
@typed_option("--cache-dir", PATH, "Where downloads are kept.")
@click.option("--verbose", is_flag=True, help="Let the libraries' own output through.")
def export(out: Path, model: str, sparse_moe: bool, sparse_ffn: bool, **options: Any) -> None:
    """Export a checkpoint or GGUF file to OUT: IR, tokenizer, ovspec_config.json and a model card.

    Flags are optimum-cli's. Needs the packages of the export extra, which a refusal names.
    """
    file = gguf_file(model)
    if file is not None:
        given = {"sparse_moe": sparse_moe, "sparse_ffn": sparse_ffn, **options}
        check_taken(given, model)
        check_new_folder(out)
        export_gguf(file, out, say, warn)
        click.echo(f"exported to {out}; try: ovspec generate -m {out} -p 'Once upon a time'")
        return
    wanted = {"sparse_moe": sparse_moe, "sparse_ffn": sparse_ffn}
    operations = [name for name, given in wanted.items() if given]
    heads = {kind: path for kind in HEAD_KINDS if (path := options.pop(kind)) is not None}
    drafts = [f"--{kind}" for kind in heads] + ["--draft-model"] * (options["draft_model"] is not None)
    if len(drafts) > 1:
        raise ValueError(f"{' and '.join(drafts)} all go to OUT/draft: give one of them")
    if heads:
        ((kind, path),) = heads.items()
        head = open_head(path, kind)
        check_target(head, model)
        asked = options["weight_format"]
        if asked in _OF_HEADS:
            warn(f"the head gets {_OF_HEADS[asked]} weights, not {asked}: no head is written in that")
        options["finish"] = lambda folder: add_head(head, folder, asked)
    with step_display() as progress, ending_at_once(remove_unfinished):
        export_model(model, out, operations=operations, progress=progress, warn=warn, **options)
    click.echo(f"exported to {out}; try: ovspec generate -m {out} -p 'Once upon a time'")


def gguf_file(model: str) -> Path | None:
    """The GGUF file that `--model` is or names on a hub; `None` where it is a checkpoint."""
    path = at_home(model)
    name = None if path.exists() else HubName.of(model)
    if name is not None and name.file is not None:
        path = fetch(name, say)
    return path if is_gguf(path) else None


def check_taken(options: dict[str, Any], model: str) -> None:
    """Refuse options that have no meaning for a GGUF file."""
    for name, value in options.items():
        if value not in (None, False, _TASK):
            raise ValueError(
                f"--{name.replace('_', '-')} is for checkpoints, and {model} is a GGUF file, whose weights "
                "are taken as they are: leave it out"
            )


@contextmanager
def step_display() -> Iterator[Any]:
    """A spinner with the current step on a terminal; a line a step in a pipe."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield lambda step: click.echo(f"ovspec: {step}", err=True)
        return
    with console.status("starting") as status:
        yield status.update
