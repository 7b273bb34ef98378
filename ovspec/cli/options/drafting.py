"""Options that choose the drafter, how its drafts are accepted and how they are committed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ovspec.cli.options.common import draft_folder
from ovspec.cli.options.forms import COUNT, PATH, default_option, typed_option
from ovspec.cli.options.help import option_group
from ovspec.drafters import NAMES, Auto, DrafterChoice, Suffix, parse_drafter
from ovspec.drafters.corpus import corpus_text
from ovspec.generation.drafting_settings import DEFAULT_NUM_ASSISTANT_TOKENS
from ovspec.modes.commit_verify import CommitVerify
from ovspec.modes.verify_mode import VerifyMode
from ovspec.schedule.schedule import SCHEDULES
from ovspec_models.folder.sparse_verify import SparseVerify

drafting_options = option_group(
    "Drafting",
    default_option("--draft-model", "auto", "As --model, auto (as exported) or none.", metavar="DIR"),
    typed_option(
        "--drafter",
        click.Choice(NAMES),
        f"{', '.join(NAMES)}.  [default: auto]",
        metavar="NAME",
    ),
    typed_option(
        "--num-assistant-tokens", int, "Draft tokens per round; for the schedule auto, the largest number."
    ),
    typed_option(
        "--tree-depth",
        click.IntRange(0),
        "Draft trees of so many levels and --num-assistant-tokens nodes.  [default: 0, chains]",
    ),
    typed_option(
        "--branching-factor",
        COUNT,
        "Trees: children of a node, and nodes of a level that get some.  [default: 1]",
    ),
    typed_option(
        "--num-assistant-tokens-schedule",
        click.Choice(SCHEDULES),
        "How that number changes: constant; auto, by measured cost and acceptance.  [default: constant with "
        "a number or a confidence threshold, else auto]",
    ),
    typed_option(
        "--assistant-confidence-threshold",
        float,
        "End a draft after a token that is less probable than this.",
    ),
    typed_option("--max-ngram-size", COUNT, "Prompt lookup: longest n-gram.  [default: 3]"),
    typed_option("--suffix-corpus", PATH, "Drafters suffix and auto: text file that is searched as well."),
    typed_option(
        "--acceptance-threshold",
        float,
        "Accept a draft token if p/q is at least this; below 1 is lossy.  [default: 1.0, exact]",
    ),
    typed_option(
        "--commit-interval",
        int,
        "Commit: tokens between dense passes.  [default: chosen, 4 to 32, or dense passes]",
    ),
)
# Options that say nothing where nobody drafts.
_OF_DRAFTS = (
    *("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold"),
    *("tree_depth", "branching_factor"),
)
#: Options that ask for drafts or say how they are made and accepted.
DRAFTING = ("drafter", "draft_model", *_OF_DRAFTS, "max_ngram_size", "suffix_corpus", "acceptance_threshold")


def drafting_from(model: Path, options: dict[str, Any]) -> tuple[Path | None, DrafterChoice | None]:
    """The draft model's folder and the drafter, if there are any; their options are taken out."""
    draft_model, name, corpus = (options.pop(key) for key in ("draft_model", "drafter", "suffix_corpus"))
    folder = draft_folder(model, draft_model, name)
    choice = parse_drafter(name, folder is not None)
    if corpus is not None:
        if not isinstance(choice, (Suffix, Auto)):
            raise ValueError(f"--suffix-corpus {corpus} needs --drafter suffix or auto")
        corpus_text(corpus)  # before a model is loaded
        choice = type(choice)(corpus)
    for key in _OF_DRAFTS:
        if choice is None and options.get(key):
            raise ValueError(
                f"--{key.replace('_', '-')} {options[key]} needs a draft model or a drafter: give "
                "--draft-model DIR or --drafter NAME"
            )
    return folder, choice


def mode_from(verify: str, mode: SparseVerify | str, interval: int | None) -> VerifyMode | str:
    """The pipeline's `verify` argument: `mode`, from the options of sparse verification, or with commits."""
    if verify == "commit":
        assert isinstance(mode, SparseVerify)
        return CommitVerify(mode, interval)
    if interval is not None:
        raise ValueError(f"--commit-interval {interval} needs --verify commit")
    return mode


def drafting_fields(options: dict[str, Any], drafts: bool) -> dict[str, Any]:
    """The drafting options that were given, as fields of a generation configuration, for an evaluation."""
    fields = {name: value for name, value in options.items() if value is not None}
    if drafts and not {"num_assistant_tokens", "assistant_confidence_threshold"} & fields.keys():
        # The default schedule follows measured times, so the number would differ between settings.
        fields["num_assistant_tokens"] = DEFAULT_NUM_ASSISTANT_TOKENS
    return fields
