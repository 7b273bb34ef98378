"""`ovspec train-head`: a head for a target, trained on a user's texts."""

from __future__ import annotations

from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from ovspec.cli.options.common import data_option, int_list, properties_from, property_option
from ovspec.cli.options.extras import need_extra
from ovspec.cli.options.forms import (
    ABOVE_ZERO,
    COUNT,
    MODEL,
    PATH,
    Whole,
    default_option,
    json_flag,
    typed_option,
)
from ovspec.cli.options.help import ShortHelpCommand
from ovspec.cli.options.output import print_json
from ovspec.drafters.eagle3 import eagle3_boundaries
from ovspec.generation.inputs import read_tokenizer, tokenized
from ovspec_models import ModelInfo
from ovspec_models.folder.jsonl import read_completions
from ovspec_models.heads.export import TRAINED_KINDS

if TYPE_CHECKING:
    from ovspec.train.held_out import HeldOut
    from ovspec.train.texts import Text
    from ovspec.train.train_head import Needs, Report, TokensRead

_DRAFT_VOCAB_SIZE = 32000
COMMON = (
    *("target", "data", "kind", "output", "epochs", "learning_rate", "max_length", "batch_tokens"),
    *("draft_vocab_size", "as_json"),
)


@click.command("train-head", cls=ShortHelpCommand, common=COMMON)
@typed_option("--target", MODEL, "Folder with the target's IR.", required=True, metavar="DIR")
@data_option("Per line a prompt with the target's completion, or a text.")
@default_option("--kind", TRAINED_KINDS[0], "Of the head.", type=click.Choice(TRAINED_KINDS))
@typed_option(
    "--output",
    PATH,
    "A new folder; DIR.training beside it holds the state until it is written.",
    required=True,
    metavar="DIR",
)
@default_option("--epochs", 2, "Times that every text is read.", type=COUNT)
@default_option(
    "--learning-rate", 2e-3, "The highest; it falls to zero. Large targets: 1e-4.", type=ABOVE_ZERO
)
@default_option(
    "--max-length", 2048, "Longer texts are cut into pieces of so many tokens.", type=click.IntRange(8)
)
@default_option("--batch-tokens", 2048, "Tokens of a step.", type=click.IntRange(16))
@default_option(
    "--ttt-length", 5, "Tokens of a draft that the head learns to write (training-time test).", type=COUNT
)
@typed_option(
    "--draft-vocab-size",
    click.IntRange(2),
    f"Tokens that it can draft: the most frequent learnt ones.  [default: {_DRAFT_VOCAB_SIZE}, or all]",
)
@typed_option("--intermediate-size", COUNT, "Of its feed-forward layer.  [default: the target's]")
@click.option(
    "--boundaries",
    metavar="A,B,C",
    help="Of the target's N layers, after how many its state is read.  [default: 2,N/2,N-3]",
)
@default_option(
    "--held-out",
    0.02,
    "Share of the texts that is measured and not learnt from.",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
)
@default_option(
    "--weight-format", "fp16", "Weights of the head's IR.", type=click.Choice(["fp32", "fp16", "int8"])
)
@default_option("--seed", 0, type=Whole(0))
@property_option
@json_flag
def train_head(
    target: Path,
    data: Path,
    kind: str,
    output: Path,
    as_json: bool,
    properties: tuple[str, ...],
    **options: Any,
) -> None:
    """Train a head that drafts for a target, on texts of the kind that it will see.

    A line of --data is {"prompt": ..., "completion": ...}, of which the completion is learnt, or a text that
    is learnt whole. The target reads them once; what it says of them is kept on the disk until the head is
    written. A run that was ended goes on where it was when it is started again. Needs torch: pip install
    'ovspec[train]'; it trains on a GPU where torch finds one.

    Shown as it goes: the mean acceptance length of drafts of 4 tokens on the held-out texts. On texts that
    the target wrote that is what greedy decoding will have, on others an estimate.
    """
    need_extra("train", "torch", "safetensors")
    _check_torch()
    from ovspec.train.eagle3_training import TrainSettings
    from ovspec.train.head_folder import HeadSizes
    from ovspec.train.texts import TrainingTexts
    from ovspec.train.train_head import Report
    from ovspec.train.train_head import train_head as train

    info = ModelInfo.read(target)
    boundaries = _boundaries(options["boundaries"], info.num_hidden_layers)
    drafted = options["draft_vocab_size"] or min(_DRAFT_VOCAB_SIZE, info.vocab_size)
    if drafted > info.vocab_size:
        raise ValueError(
            f"--draft-vocab-size {drafted}: the target has {info.vocab_size} tokens; give at most so many"
        )
    seed = options["seed"]
    texts = TrainingTexts.split(_texts(target, data), options["max_length"], options["held_out"], seed)
    click.echo(
        f"ovspec: {_count(texts.train)} to learn from, {_count(texts.held_out)} held out",
        err=True,
    )
    sizes = HeadSizes(
        drafted,
        options["intermediate_size"] or info.intermediate_size,
        boundaries,
    )
    names = ("epochs", "batch_tokens", "learning_rate", "ttt_length")
    settings = TrainSettings(**{name: options[name] for name in names}, seed=seed)
    reports: list[dict[str, Any]] = []

    def show(report: Report | Needs | TokensRead) -> None:
        if isinstance(report, Report):
            reports.append(_record(report))
        click.echo(_line(report), err=True)

    found = train(
        info, texts, sizes, settings, output, properties_from(properties), options["weight_format"], show
    )
    if as_json:
        print_json({"output": str(output), "kind": kind, **_agreement(found), "reports": reports})
    else:
        click.echo(
            f"trained {output}: {found.tokens_per_pass:.2f} tokens per pass held out; try: "
            f"ovspec generate -m {target} --draft-model {output} -p 'Once upon a time'"
        )


def _check_torch() -> None:
    import torch

    if not hasattr(torch.optim, "Muon"):
        raise ValueError(
            f"train-head needs torch 2.9 or later, this is {torch.__version__}: install it with "
            "`pip install -U 'ovspec[train]'`"
        )


def _texts(target: Path, data: Path) -> list[Text]:
    """The texts of a file in the target's tokens."""
    from ovspec.train.texts import Text

    tokenizer, texts = read_tokenizer(target), list[Text]()
    for prompt, completion in read_completions(data):
        # A chat template has written the token that begins a text already.
        begun = bool(prompt) and prompt.startswith(tokenizer.get_bos_token() or "\0")
        whole = tokenized(tokenizer, prompt + completion, special_tokens=not begun)
        alone = tokenized(tokenizer, prompt, special_tokens=not begun) if prompt else []
        # A token at the seam may hold parts of both.
        known = sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(alone, whole, strict=False)))
        texts.append(Text(np.array(whole, np.int64), known))
    return texts


def _count(texts: list[Text]) -> str:
    learnt = sum(len(text) - text.prompt for text in texts)
    return f"{learnt:,} tokens of {len(texts):,} texts"


def _boundaries(given: str | None, layers: int) -> tuple[int, ...]:
    if given is None:
        return eagle3_boundaries(layers)
    found = int_list("--boundaries", given)
    if wrong := [number for number in found if not 0 <= number <= layers]:
        raise ValueError(f"--boundaries {wrong[0]}: the target has {layers} layers; expected 0 to {layers}")
    return found


def _agreement(found: HeldOut) -> dict[str, Any]:
    return {
        "tokens_per_pass": round(found.tokens_per_pass, 4),
        "acceptance": [round(share, 4) for share in found.acceptance],
    }


def _record(report: Report) -> dict[str, Any]:
    record = {**asdict(report), **_agreement(report.held_out)}
    del record["held_out"]
    return record


def _line(report: Report | Needs | TokensRead) -> str:
    from ovspec.train.train_head import Needs, TokensRead

    if isinstance(report, Needs):
        return (
            f"ovspec: needs about {report.memory / 1e9:.1f} GB of memory, and {report.disk / 1e9:.1f} GB of "
            f"the disk in {report.folder} until the head is written"
        )
    if isinstance(report, TokensRead):
        return f"ovspec: the target has read {report.so_far:,} of {report.all:,} tokens"
    loss = "" if report.loss is None else f"loss {report.loss:.3f}, {report.tokens_per_second:.0f} tokens/s, "
    rates = " ".join(f"{share:.2f}" for share in report.held_out.acceptance)
    return (
        f"ovspec: step {report.step} of {report.steps}: {loss}held out {report.held_out.tokens_per_pass:.2f} "
        f"tokens per pass, drafts right up to token 1 2 3 4: {rates}"
    )
