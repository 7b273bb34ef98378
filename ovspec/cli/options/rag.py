"""Options of commands that answer from a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ovspec.cli.options.common import draft_folder
from ovspec.cli.options.forms import COUNT, PATH, Whole, default_option, typed_option
from ovspec.cli.options.help import GENERAL, option_group
from ovspec.cli.options.pipeline import PipelineChoice
from ovspec.cli.options.waiting import loading
from ovspec.pipeline.pipeline import LLMPipeline
from ovspec.rag import RagSettings, SpeculativeRAG, Store
from ovspec.rag.indexing import embedder_of
from ovspec.rag.result import MODES, Mode

store_option = click.option(
    "--store",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The store, one SQLite file.",
)
mode_option = default_option(
    "--mode", MODES[0], "speculative: drafts, verified; plain: all documents.", type=click.Choice(MODES)
)
_DEFAULTS = RagSettings()
_SETTINGS = (
    *("num_documents", "num_drafts", "documents_per_draft", "max_rationale_tokens", "max_answer_tokens"),
    "cluster_by",
)
settings_options = option_group(
    GENERAL,
    default_option("--num-documents", _DEFAULTS.num_documents, "Documents to retrieve.", type=COUNT),
    default_option("--num-drafts", _DEFAULTS.num_drafts, "Drafts, each of other documents.", type=COUNT),
    default_option("--documents-per-draft", _DEFAULTS.documents_per_draft, "Documents of each.", type=COUNT),
    default_option("--max-rationale-tokens", _DEFAULTS.max_rationale_tokens, "Of a draft.", type=COUNT),
    default_option("--max-answer-tokens", _DEFAULTS.max_answer_tokens, "Of a draft or answer.", type=COUNT),
    default_option(
        "--cluster-by",
        _DEFAULTS.cluster_by,
        "Vectors of the store, or of each document with the question, as in the paper.",
        type=click.Choice(["document", "question"]),
    ),
    default_option("--rag-seed", _DEFAULTS.seed, "Seed of clusters and subsets.", type=Whole(0)),
    typed_option("--embedding-model", PATH, "Where the store's embedding model lies now.", metavar="DIR"),
)


def rag_options(command: Any) -> Any:
    """`--mode` and the settings of an answer."""
    return mode_option(settings_options(command))


@dataclass(frozen=True, slots=True)
class RagPipelines:
    """The models and settings that a command's options describe.

    Attributes:
        choice: the target's pipeline.
        draft: folder of the drafter; `None`: the target drafts, or nobody does.
        options: of the target's own answers.
    """

    mode: Mode
    choice: PipelineChoice
    draft: Path | None
    settings: RagSettings
    embedding_model: Path | None
    options: dict[str, Any]

    @classmethod
    def of(cls, options: dict[str, Any], mode: Mode | None = None) -> RagPipelines:
        """Take the options of `rag_options` and `pipeline_options` out.

        Args:
            mode: where the command has no such option.

        Raises:
            ValueError: an option of speculative decoding or of sparse reading with the mode "speculative".
        """
        not_here = _NOT_HERE if mode else f"with --mode speculative {_NOT_HERE}, or add --mode plain"
        mode = mode or options.pop("mode")
        fields = {name: options.pop(name) for name in _SETTINGS}
        settings = RagSettings(**fields, seed=options.pop("rag_seed"))
        embedding_model = options.pop("embedding_model")
        draft_model, drafter = options["draft_model"], options["drafter"]
        draft = None
        if mode == "speculative":
            if drafter is not None:
                raise ValueError(f"--drafter {drafter}: {not_here}")
            draft = draft_folder(options["model"], draft_model)
            options["draft_model"] = "none"
        verify = options["verify"]
        choice = PipelineChoice.of(options)
        given = {name: value for name, value in options.items() if value is not None}
        if mode == "speculative":
            if choice.verify != "dense":
                raise ValueError(f"--verify {verify}: {not_here}")
            if choice.prefill is not None:
                raise ValueError(f"--prefill sparse: {not_here}")
            for name, value in given.items():
                raise ValueError(f"--{name.replace('_', '-')} {value}: {not_here}")
        return cls(mode, choice, draft, settings, embedding_model, given)

    @contextmanager
    def open(self, store: Path, shown: bool = True) -> Iterator[SpeculativeRAG]:
        """The store with the models, which are loaded when the store has been opened."""
        with Store(store) as opened:
            embedder = embedder_of(opened.settings, self.embedding_model)
            with loading(self.choice.model, shown):
                target = self.choice.start()
            drafter = None
            if self.draft is not None:
                with loading(self.draft, shown):
                    drafter = LLMPipeline(self.draft, **self.choice.arguments)
            yield SpeculativeRAG(opened, target, drafter, self.settings, embedder)


_NOT_HERE = "the draft model writes answers, and the model reads these drafts densely; leave it out"
