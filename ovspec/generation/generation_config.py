"""Generation configuration: openvino_genai's fields and ovspec's own, checked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import openvino_genai

from ovspec.adapters.adapter_config import AdapterBlend, PipelineAdapters, requested
from ovspec.errors import InvalidTypeError, InvalidValueError
from ovspec.generation.beam_settings import OF_BEAMS, beams_of
from ovspec.generation.config_fields import SEE, assign, fields_of
from ovspec.generation.drafting_settings import (
    acceptance_rule_of,
    acceptance_threshold_of,
    assistant_tokens_of,
    schedule_of,
    tree_of,
)
from ovspec.generation.grammars.grammar import Grammar
from ovspec.generation.number_ranges import check_ranges
from ovspec.sampling.beam_search import BeamParams
from ovspec.sampling.sampling import NO_NGRAM_SIZE, SamplingParams
from ovspec_models.folder.shown import shown
from ovspec_transforms import last_line

# Fields of openvino_genai.GenerationConfig that are not supported, with the value that disables them.
UNSUPPORTED: dict[str, object] = {
    "relevance_weight": 0.5,
    "pruning_ratio": 0,
    "return_omni_outputs": False,
}

_ASSISTANT_OFF: dict[str, Any] = {"num_assistant_tokens": None, "assistant_confidence_threshold": 0.0}
_ASSISTANT_OPTIONS = tuple(_ASSISTANT_OFF)
_TREE_OFF: dict[str, Any] = {"branching_factor": 1, "tree_depth": 0}
_DRAFTER_OFF: dict[str, Any] = {
    **_ASSISTANT_OFF,
    **_TREE_OFF,
    "max_ngram_size": 0,
    "acceptance_threshold": 1.0,
    "acceptance_rule": "coupled",
    "num_assistant_tokens_schedule": None,
}


class GenerationConfig(openvino_genai.GenerationConfig):  # type: ignore[misc,unused-ignore]
    """openvino_genai's configuration with additional fields of ovspec.

    An `openvino_genai.GenerationConfig` is accepted as well; ovspec's fields then have their defaults.

    Attributes:
        acceptance_threshold: 1.0 is the exact rule. With a lower value, which is lossy, a draft token that is
            not the target's own is accepted too, wherever the target's probability is at least this share of
            the drafter's, and in greedy decoding of the most probable token's.
        acceptance_rule: of sampling. With "coupled" a seed gives the text of plain decoding. "block" is block
            verification, which accepts more draft tokens: every token still follows the target's exact
            distribution, but a seed names a text only together with its drafts.
        num_assistant_tokens_schedule: "constant" drafts `num_assistant_tokens` in every round; "auto" chooses
            by measured cost and acceptance, up to `num_assistant_tokens` if it is given. `None` is "constant"
            if `num_assistant_tokens` or `assistant_confidence_threshold` is given, else "auto". With
            `verify="commit"` both choose when tokens are confirmed, as `CommitVerify.interval` says.
        tree_depth: as in openvino_genai: above 0 drafts are trees of so many levels. Here sampling goes with
            trees too, and with the schedule "auto" `num_assistant_tokens` is the largest tree.
        branching_factor: as in openvino_genai: children that a node of a tree may have, and nodes of a level
            that get children.
        adapters: an `AdapterConfig`; `None`: the pipeline's.
        parsers: as in openvino_genai: what makes `parsed` of a text, one after the other.
    """

    acceptance_threshold: Any = 1.0
    acceptance_rule: Any = "coupled"
    num_assistant_tokens_schedule: Any = None
    adapters: Any = None  # openvino_genai's property takes its own AdapterConfig only
    parsers: Any = ()  # and its list of parsers does not keep those written in Python

    def __init__(self, *json_path: Any, **fields: Any) -> None:
        try:
            super().__init__(*json_path)
        except TypeError as error:
            raise InvalidTypeError(
                "GenerationConfig: expected the path of a generation_config.json, or options as keywords"
            ) from error
        except RuntimeError as error:
            raise InvalidValueError(
                f"{json_path[0]} is no generation_config.json that can be read: {last_line(error)}"
            ) from error
        self.update_generation_config(**fields)

    def __setattr__(self, name: str, value: Any) -> None:
        # An object of a class in Python takes any name: a misspelt option would be ignored.
        if not hasattr(type(self), name):
            raise AttributeError(f"{name}={shown(value)}: GenerationConfig has no such option; {SEE}")
        super().__setattr__(name, value)

    def update_generation_config(self, **fields: Any) -> None:
        """Replace single fields.

        Raises:
            ValueError: a field that there is not, or a value of another type.
        """
        for name, value in fields.items():
            assign(self, name, value)
        if "eos_token_id" in fields and self.eos_token_id != -1:
            self.set_eos_token_id(self.eos_token_id)


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """A checked configuration.

    Attributes:
        sampling: how tokens are chosen.
        max_new_tokens: limit per sequence, or `None` for the model's positions.
        max_length: limit of prompt and output together, or `None`.
        stop_token_ids: tokens that end a sequence; they are part of its tokens.
        stop_strings: texts that end a sequence.
        include_stop_str_in_output: whether a stop string stays in the text.
        num_assistant_tokens_schedule: "constant" or "auto".
        num_assistant_tokens: draft tokens per round; the largest number of "auto".
        assistant_confidence_threshold: a draft ends after a token less probable than this; 0 is off.
        max_ngram_size: longest n-gram that prompt lookup searches for; 0: the drafter decides.
        acceptance_threshold: t of the lenient acceptance rule; 1.0 is the exact one.
        acceptance_rule: "coupled" or "block".
        branching_factor: children that a node of a draft tree may have, and nodes of a level that get some.
        tree_depth: levels of a draft tree; 0: drafts are chains.
        num_return_sequences: sequences per prompt.
        beams: how beams are searched; `None`: one sequence is decoded.
        apply_chat_template: whether a plain prompt goes through the tokenizer's chat template.
        grammar: that every sequence follows; `None`: none.
        scores: whether `scores` are the sums of log probabilities; else 0.
        echo: whether an answer begins with its prompt.
        adapters: LoRA adapters; `None`: none.
        parsers: of whole texts.
    """

    sampling: SamplingParams
    max_new_tokens: int | None
    max_length: int | None
    stop_token_ids: frozenset[int]
    stop_strings: tuple[str, ...]
    include_stop_str_in_output: bool
    num_assistant_tokens_schedule: str
    num_assistant_tokens: int
    assistant_confidence_threshold: float
    max_ngram_size: int
    acceptance_threshold: float
    acceptance_rule: str
    branching_factor: int
    tree_depth: int
    num_return_sequences: int
    apply_chat_template: bool
    beams: BeamParams | None = None
    grammar: Grammar | None = None
    scores: bool = False
    echo: bool = False
    adapters: AdapterBlend | None = None
    parsers: tuple[openvino_genai.Parser, ...] = ()

    @property
    def num_requests(self) -> int:
        """Requests of a prompt: one for each sequence, but beams are those of one."""
        return self.num_return_sequences if self.beams is None else 1

    @property
    def identity_breakers(self) -> tuple[str, ...]:
        """What keeps a seed from giving the text of plain decoding, as of `PerfMetrics`."""
        if self.acceptance_rule == "coupled":
            return ()
        return (
            "acceptance_rule='block' draws with other random numbers wherever drafts differ; use "
            "acceptance_rule='coupled'",
        )

    def token_limit(self, prompt_length: int, positions: int) -> int:
        """Largest number of new tokens: the limits of the request within the positions of the model.

        Raises:
            ValueError: `max_length` leaves no room for one.
        """
        limit = positions - prompt_length
        if self.max_new_tokens is not None:
            return min(limit, self.max_new_tokens)
        if self.max_length is None:
            return limit
        if self.max_length <= prompt_length:
            raise InvalidValueError(
                f"max_length={self.max_length}: the prompt alone has {prompt_length} tokens; raise it, or "
                "give max_new_tokens"
            )
        return min(limit, self.max_length - prompt_length)


def updated(
    config: openvino_genai.GenerationConfig, overrides: dict[str, Any]
) -> openvino_genai.GenerationConfig:
    """A copy of `config` with single fields replaced, as the keyword arguments of `generate` do.

    Raises:
        ValueError: a field that openvino_genai.GenerationConfig does not have, or of another type.
    """
    if not isinstance(config, openvino_genai.GenerationConfig):
        raise InvalidTypeError(
            f"generation_config: expected an openvino_genai.GenerationConfig, got {type(config).__name__}; "
            "pass single options as keywords"
        )
    copy = GenerationConfig()
    for name in fields_of(config):
        setattr(copy, name, getattr(config, name))
    for given, other in (_ASSISTANT_OPTIONS, _ASSISTANT_OPTIONS[::-1]):
        # The two exclude each other: the one that is given now replaces the one that was a default.
        if given in overrides and other not in overrides:
            setattr(copy, other, _ASSISTANT_OFF[other])
    if "num_beams" in overrides:  # beams are searched without drafts
        for name, off in (OF_BEAMS if overrides["num_beams"] == 1 else _DRAFTER_OFF).items():
            setattr(copy, name, off)
    copy.update_generation_config(**overrides)
    if copy.eos_token_id != -1:
        copy.set_eos_token_id(copy.eos_token_id)
    return copy


def check_supported(config: openvino_genai.GenerationConfig) -> None:
    """Refuse options that this pipeline does not support.

    Raises:
        ValueError: it names the option.
    """
    for name, off in UNSUPPORTED.items():
        if (value := getattr(config, name)) != off:
            raise InvalidValueError(f"{name}={value!r} is not supported: leave it at {off!r}")
    beams_of(config)


def without_assistant(config: openvino_genai.GenerationConfig) -> openvino_genai.GenerationConfig:
    """The defaults of a folder without the drafting options, for a pipeline that does not draft."""
    return updated(config, dict(_DRAFTER_OFF))


def with_eos(
    config: openvino_genai.GenerationConfig, eos_token_ids: Sequence[int]
) -> openvino_genai.GenerationConfig:
    """The configuration, with the model's end-of-sequence ids, as of `resolve`, if it names none itself."""
    if config.eos_token_id == -1 and eos_token_ids:
        ids = {*config.stop_token_ids, *_eos(config, eos_token_ids)}
        config.eos_token_id, config.stop_token_ids = eos_token_ids[0], ids
    return config


def resolve(
    config: openvino_genai.GenerationConfig,
    eos_token_ids: Sequence[int],
    has_draft: bool,
    stops: Collection[int] | None = None,
    grammar: Grammar | None = None,
    adapters: PipelineAdapters | None = None,
) -> GenerationSettings:
    """Check a configuration and turn it into settings.

    Args:
        eos_token_ids: end-of-sequence ids of the model, the main one first, used if the configuration has
            none. If it has `stop_token_ids`, only the main one is added, as in openvino_genai.
        stops: makes the settings of a client of OpenAI's interface, whose answer ends at these tokens as well
            as at all end-of-sequence ids, and at these alone with `ignore_eos`. Penalties are subtracted.
        grammar: that answers follow, in place of the configuration's.
        adapters: of the pipeline.

    Raises:
        ValueError: an unsupported or contradicting option; it names itself.
    """
    config = updated(config, {})
    check_supported(config)
    eos = _eos(config, eos_token_ids) if stops is None else frozenset((*eos_token_ids, *stops))
    if (beams := beams_of(config)) is not None:
        _refuse_drafting(config, f"num_beams={beams.num_beams} are searched without drafts; leave it out")
    _validate(config, eos)
    if not has_draft:
        _refuse_drafting(config, "this pipeline does not draft; pass draft_model=... or drafter=... to it")
    schedule = "constant" if beams else schedule_of(config)
    tokens, threshold = assistant_tokens_of(config, schedule) if has_draft and not beams else (0, 0.0)
    branching_factor, tree_depth = tree_of(config)
    sampling = SamplingParams.from_generation_config(config, eos)
    sampling = replace(sampling, subtracts_penalties=stops is not None)
    return GenerationSettings(
        sampling=sampling,
        max_new_tokens=_limit(config.max_new_tokens),
        max_length=_limit(config.max_length),
        stop_token_ids=frozenset(stops or ()) if config.ignore_eos else sampling.stop_token_ids,
        stop_strings=tuple(sorted(config.stop_strings)),
        include_stop_str_in_output=config.include_stop_str_in_output,
        num_assistant_tokens_schedule=schedule,
        num_assistant_tokens=tokens,
        assistant_confidence_threshold=threshold,
        max_ngram_size=config.max_ngram_size,
        acceptance_threshold=acceptance_threshold_of(config),
        acceptance_rule=acceptance_rule_of(config),
        branching_factor=branching_factor,
        tree_depth=tree_depth,
        num_return_sequences=config.num_return_sequences,
        beams=beams,
        apply_chat_template=config.apply_chat_template,
        grammar=_grammar(config, grammar),
        scores=config.logprobs > 0,
        echo=config.echo,
        adapters=requested(adapters, config.adapters),
        parsers=_parsers(config),
    )


def _parsers(config: openvino_genai.GenerationConfig) -> tuple[openvino_genai.Parser, ...]:
    given = config.parsers or ()
    given = tuple(given) if isinstance(given, Iterable) else (given,)
    for parser in given:
        if not isinstance(parser, openvino_genai.Parser):
            raise InvalidTypeError(
                f"parsers: expected objects of openvino_genai.Parser, got {type(parser).__name__}"
            )
    return given


def _grammar(config: openvino_genai.GenerationConfig, grammar: Grammar | None) -> Grammar | None:
    grammar = grammar or Grammar.of_config(config.structured_output_config)
    if grammar is None:
        return None
    field = grammar.field.partition(".")[0]
    if config.num_beams > 1:
        raise InvalidValueError(f"{field}: num_beams={config.num_beams} follow no grammar; leave one out")
    for name, off in (("min_new_tokens", 0), ("ignore_eos", False)):
        if (value := getattr(config, name)) != off:
            raise InvalidValueError(f"{name}={value}: with {field} the grammar says where an answer ends")
    if (size := config.no_repeat_ngram_size) not in (0, NO_NGRAM_SIZE):
        raise InvalidValueError(
            f"no_repeat_ngram_size={size}: with {field} the grammar may ask for an n-gram again; set it to 0"
        )
    return grammar


def _eos(config: openvino_genai.GenerationConfig, eos_token_ids: Sequence[int]) -> frozenset[int]:
    if config.eos_token_id != -1:
        return frozenset()
    return frozenset(eos_token_ids[:1] if config.stop_token_ids else eos_token_ids)


def _limit(value: int) -> int | None:
    return None if value == 2**64 - 1 else int(value)


def _validate(config: openvino_genai.GenerationConfig, eos: frozenset[int]) -> None:
    # openvino_genai requires max_ngram_size with num_assistant_tokens. Its trees do not sample.
    # With beams it takes no other size for no n-grams.
    ngram_size = config.no_repeat_ngram_size or NO_NGRAM_SIZE
    given = {"stop_token_ids": {*config.stop_token_ids, *eos}, "no_repeat_ngram_size": ngram_size}
    checked = updated(config, {**given, "max_ngram_size": 0, **_TREE_OFF})
    if checked.num_assistant_tokens is not None and checked.assistant_confidence_threshold > 0:
        raise InvalidValueError(
            f"num_assistant_tokens={checked.num_assistant_tokens} and assistant_confidence_threshold="
            f"{checked.assistant_confidence_threshold:g} are mutually exclusive: give one of them"
        )
    check_ranges(checked)
    if any(not text for text in config.stop_strings):
        raise InvalidValueError("stop_strings='': an empty text would stop everything; remove it")


def _refuse_drafting(config: GenerationConfig, why: str) -> None:
    names = ("tree_depth", "acceptance_threshold", "acceptance_rule", "num_assistant_tokens_schedule")
    for name in (*names, *_ASSISTANT_OPTIONS):
        value = getattr(config, name)
        if value and value != _DRAFTER_OFF[name]:
            shown = f"{value:g}" if isinstance(value, float) else repr(value)
            raise InvalidValueError(f"{name}={shown}: {why}")
