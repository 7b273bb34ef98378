"""Options of commands that generate: those of the pipeline and those of an answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from openvino_genai import StopCriteria

from ovspec.adapters.adapter_config import PipelineAdapters
from ovspec.cli.options.common import (
    backend_options,
    memory_limit_from,
    memory_options,
    model_option,
    prefill_from,
    prefill_options,
    properties_from,
    verify_from,
    verify_options,
)
from ovspec.cli.options.drafting import drafting_from, drafting_options, mode_from
from ovspec.cli.options.extras import need_extra
from ovspec.cli.options.forms import COUNT, Whole, default_option, typed_option
from ovspec.cli.options.help import GENERAL, Command, option_group
from ovspec.cli.options.output import warn
from ovspec.cli.options.waiting import loading
from ovspec.drafters import NONE, DrafterChoice
from ovspec.generation.drafting_settings import ACCEPTANCE_RULES
from ovspec.generation.generation_config import updated
from ovspec.modes.sparse_prefill import SparsePrefill
from ovspec.modes.verify_mode import VerifyMode, calibrated_mode, parse_verify
from ovspec.pipeline.loaded_pipeline import LoadedPipeline
from ovspec.pipeline.models.draft_model import draft_model
from ovspec.pipeline.outline import Outline
from ovspec.pipeline.pipeline import LLMPipeline
from ovspec.pipeline.prefix_files import load_prefix
from ovspec.pipeline.vlm_pipeline import VLMPipeline
from ovspec_models import ModelInfo, OvspecConfig
from ovspec_models.folder.graph_files import text_embedding_of

Pipeline = TypeVar("Pipeline", bound=LoadedPipeline)
_ARGUMENTS = inspect.signature(LLMPipeline.__init__).parameters.keys() - {"properties"}


max_context_option = typed_option(
    "--max-context", COUNT, "Tokens of prompt and answer for which memory must suffice; see info."
)
prefix_option = typed_option(
    "--prefix-cache",
    click.Path(dir_okay=False, path_type=Path),
    "File of `ovspec cache save`: what prompts begin with.",
)
_length_options = option_group(
    GENERAL,
    default_option("--max-new-tokens", 100, "Most tokens to generate.", type=Whole(1)),
    max_context_option,
    click.option(
        "--stop-string", "stop_strings", multiple=True, help="Text that ends the output; repeatable."
    ),
    click.option("--ignore-eos", is_flag=True, help="Generate past the end-of-sequence token."),
)
_sampling_options = option_group(
    "Sampling",
    click.option("--do-sample", is_flag=True, help="Sample instead of greedy decoding."),
    typed_option("--temperature", float, "Sampling temperature.  [default: 1.0]"),
    typed_option("--top-p", float, "Nucleus sampling.  [default: 1.0]"),
    typed_option("--top-k", int, "Sample from the k most probable tokens."),
    typed_option("--min-p", float, "Drop tokens below this share of the largest probability."),
    typed_option("--repetition-penalty", float, "Penalty on tokens of prompt and output.  [default: 1.0]"),
    typed_option("--presence-penalty", float, "Penalty on tokens of the output.  [default: 0.0]"),
    typed_option("--frequency-penalty", float, "The same, times their number.  [default: 0.0]"),
    typed_option(
        "--acceptance-rule",
        click.Choice(ACCEPTANCE_RULES),
        "coupled: a seed gives the text of plain decoding; block: more of a draft is accepted.  "
        "[default: coupled]",
    ),
    typed_option("--seed", Whole(0), "Seed of the random streams.  [default: 0]"),
)
beam_options = option_group(
    "Beams",
    typed_option("--num-beams", COUNT, "Search with so many beams, without drafts.  [default: 1, none]"),
    typed_option("--num-beam-groups", COUNT, "Groups of beams that differ.  [default: 1]"),
    typed_option("--diversity-penalty", float, "Of groups: on a token that an earlier group has chosen."),
    typed_option(
        "--length-penalty", float, "Scores are divided by length to the power of this.  [default: 1.0]"
    ),
    typed_option(
        "--stop-criteria",
        click.Choice(list(StopCriteria.__members__)),
        "EARLY: as many answers as beams; HEURISTIC: the best beam is no better; NEVER: it can't become "
        "better.  [default: HEURISTIC]",
    ),
    typed_option("--num-return-sequences", COUNT, "Answers: the best beams, or several samples."),
    typed_option("--no-repeat-ngram-size", COUNT, "No n-gram of this size twice, with one beam too."),
)


def pipeline_options(command: Command) -> Command:
    """Options that make the pipeline: model, device, operations, drafter, verification."""
    command = prefill_options(backend_options(memory_options(command)))
    return model_option(drafting_options(verify_options(command)))


def answer_options(command: Command) -> Command:
    """Options of one answer: its length, sampling and penalties."""
    return _length_options(_sampling_options(command))


@dataclass(frozen=True, slots=True)
class PipelineChoice:
    """The pipeline that a command's options describe.

    Attributes:
        verify: how drafts are verified.
        prefill: how prompts are read; `None`: densely.
        draft: folder of the draft model, if there is one.
        arguments: the other arguments of `LLMPipeline`.
    """

    model: Path
    verify: VerifyMode
    prefill: SparsePrefill | None
    draft: Path | None
    drafter: DrafterChoice | None
    arguments: dict[str, Any]

    @classmethod
    def of(cls, options: dict[str, Any]) -> PipelineChoice:
        """Take the options of `pipeline_options` out; a command need not have all of them.

        Its `adapters` are an `AdapterConfig`, if there are any.
        """
        model = options.pop("model")
        verify = mode_from(options["verify"], verify_from(options), options.pop("commit_interval"))
        prefill, (draft, drafter) = prefill_from(options), drafting_from(model, options)
        names = ("max_context", "device", "attention", "experts", "ffn", "linear")
        arguments = {name: options.pop(name) for name in names if name in options}
        arguments["memory_limit"] = memory_limit_from(options)
        if (adapters := options.pop("adapters", None)) is not None:
            arguments["adapters"] = adapters
        properties = properties_from(options.pop("properties"))
        for name in properties:
            if name in _ARGUMENTS:
                raise ValueError(
                    f"--property {name}: that is an argument of LLMPipeline, not a property of OpenVINO; use "
                    "the command's own option for it"
                )
        arguments |= properties
        return cls(model, parse_verify(verify), prefill, draft, drafter, arguments)

    def start(
        self, verify: VerifyMode | None = None, drafts: bool = True, sparse_prompts: bool = True
    ) -> LLMPipeline:
        """Start the pipeline; with another `verify`, without drafts or with dense prompts where asked for."""
        return self.start_as(LLMPipeline, verify, drafts, sparse_prompts)

    def start_as(
        self,
        kind: type[Pipeline],
        verify: VerifyMode | None = None,
        drafts: bool = True,
        sparse_prompts: bool = True,
    ) -> Pipeline:
        """Start a pipeline of a kind."""
        draft = self.draft if drafts else None
        return kind(
            self.model,
            draft_model=None if draft is None else draft_model(draft),
            drafter=self.drafter if drafts and self.drafter else NONE,
            verify=self.verify if verify is None else verify,
            prefill=(self.prefill if sparse_prompts else None) or "dense",
            **self.arguments,
        )

    def outline(self) -> Outline:
        """The pipeline without its models, for a process that only makes its requests."""
        info = ModelInfo.read(self.model)
        verify = calibrated_mode(self.verify, OvspecConfig.load(self.model))
        adapters = PipelineAdapters.of(self.arguments.get("adapters"))
        return Outline(
            info, verify, self.drafter, max_context=self.arguments["max_context"], adapters=adapters
        )


def pipeline_from(
    options: dict[str, Any],
    shown: bool = True,
    told: bool = False,
    prepare: Callable[[LLMPipeline], None] = lambda pipeline: None,
) -> tuple[LLMPipeline, PipelineChoice]:
    """Start the pipeline that the options of `pipeline_options` describe; see `pipeline_as`."""
    return pipeline_as(LLMPipeline, options, shown, told, prepare)


def pipeline_as(
    kind: type[Pipeline],
    options: dict[str, Any],
    shown: bool = True,
    told: bool = False,
    prepare: Callable[[Pipeline], None] = lambda pipeline: None,
) -> tuple[Pipeline, PipelineChoice]:
    """Start a pipeline of a kind by the options of `pipeline_options`, which are taken out.

    Args:
        shown, told: as of `loading`.
        prepare: called with the pipeline before its prefix cache is filled.
    """
    prefix = options.pop("prefix_cache", None)
    choice = PipelineChoice.of(options)
    generation_options(dict(options))  # refuses before the model is loaded
    with loading(choice.model, shown, told):
        pipeline = choice.start_as(kind)
    prepare(pipeline)
    if prefix is not None:
        need_extra("cache", "safetensors")
        try:
            load_prefix(pipeline, prefix)
        except ValueError as error:
            warn(f"--prefix-cache is not used: {error}")
    return pipeline, choice


def serving_pipeline(
    options: dict[str, Any], max_num_seqs: int | None = None, cache_size: int | None = None, share: int = 1
) -> LoadedPipeline:
    """A pipeline for requests, which reads pictures where its folder does; see `serving_pipeline_as`."""
    reads_pictures = text_embedding_of(options["model"]) is not None
    kind = VLMPipeline if reads_pictures else LLMPipeline
    return serving_pipeline_as(kind, options, max_num_seqs, cache_size, share)


def serving_pipeline_as(
    kind: type[Pipeline],
    options: dict[str, Any],
    max_num_seqs: int | None = None,
    cache_size: int | None = None,
    share: int = 1,
) -> Pipeline:
    """A pipeline for requests that say themselves how they are sampled; drafting options are its defaults.

    Args:
        max_num_seqs: requests that run at a time; `None`: keys and values have no bound.
        cache_size: the bound in bytes; `None`: what the memory plan leaves.
        share: pipelines of this machine among which that is divided.
    """

    def bound(pipeline: Pipeline) -> None:
        if max_num_seqs is None:
            return
        tokens = pipeline.bound_cache(max_num_seqs, cache_size, share)
        size = tokens * pipeline.runner.cache.block_bytes / pipeline.runner.block_size
        click.echo(f"ovspec: keys and values: {size / 1e9:.2f} GB, {tokens:,} tokens", err=True)

    given = {**options, "do_sample": False}
    pipeline, _ = pipeline_as(kind, given, told=True, prepare=bound)
    _set_defaults(pipeline, given)
    return pipeline


def serving_outline(options: dict[str, Any]) -> Outline:
    """What makes the requests of a `serving_pipeline`, in another process."""
    given = {**options, "do_sample": False}
    given.pop("prefix_cache", None)
    outline = PipelineChoice.of(given).outline()
    _set_defaults(outline, given)
    return outline


def _set_defaults(pipeline: Outline, given: dict[str, Any]) -> None:
    defaults = generation_options(given)
    del defaults["do_sample"]
    pipeline.set_generation_config(updated(pipeline.get_generation_config(), defaults))


def generation_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, as fields of a generation configuration."""
    fields = {name: value for name, value in options.items() if value is not None and value != ()}
    # A folder's generation_config.json may ask for sampling; the command samples when it is told to.
    fields["do_sample"] = options["do_sample"]
    for name in ("temperature", "top_p", "top_k", "min_p", "acceptance_rule", "seed"):
        if name in fields and not options["do_sample"]:
            option = f"--{name.replace('_', '-')} {fields[name]}"
            raise ValueError(f"{option} needs --do-sample: greedy decoding ignores it")
    # Likewise for beams.
    fields.setdefault("num_beams", 1)
    if "stop_criteria" in fields:
        fields["stop_criteria"] = StopCriteria.__members__[fields["stop_criteria"]]
    if "seed" in fields:
        fields["rng_seed"] = fields.pop("seed")
    return fields
