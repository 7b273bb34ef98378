"""Arguments of the constructors of `openvino_genai.LLMPipeline`, for `ovspec.LLMPipeline`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openvino as ov
from openvino_genai import SchedulerConfig, Tokenizer

from ovspec.adapters.adapter_config import PipelineAdapters
from ovspec.drafters.drafter import Drafter
from ovspec.engine.llm_engine import MAX_NUM_SEQS, LLMEngine
from ovspec.errors import InvalidTypeError, InvalidValueError
from ovspec.generation.config_fields import fields_of
from ovspec.generation.grammars.grammars import Grammars
from ovspec.memory.memory_plan import MemoryPlan
from ovspec.modes.sparse_prefill import PROMPT_PIECE
from ovspec.modes.verify_mode import VerifyMode
from ovspec.passes.prompt_pieces import DEFAULT_MAX_NUM_BATCHED_TOKENS
from ovspec.runner.model_runner import ModelRunner
from ovspec_models import OvspecConfig
from ovspec_ops import extension_path

# Supported fields of SchedulerConfig; the others must have their defaults.
_HONOURED = (
    *("cache_size", "max_num_batched_tokens", "max_num_seqs", "enable_prefix_caching"),
    "dynamic_split_fuse",
)
_GIB = 2**30
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class PipelineArguments:
    """Arguments parsed from the positional arguments and the properties.

    Attributes:
        tokenizer: the user's tokenizer; `None`: that of the folder.
        device: OpenVINO device.
        properties: OpenVINO properties only.
        adapters: LoRA adapters; `None`: the model's layers get no place for any.
        prompt_lookup: whether openvino_genai's property of that name was set.
        max_num_batched_tokens: of a `SchedulerConfig`, or `None`.
        cache_bytes: limit of the target's keys and values in bytes, or `None`.
        max_num_seqs: requests that run at a time.
        enable_prefix_caching: whether prompts share what they begin with; they do without a
            `SchedulerConfig`.
        dynamic_split_fuse: whether several passes may read a prompt.
    """

    tokenizer: Tokenizer | None
    device: str
    properties: dict[str, Any]
    adapters: PipelineAdapters | None = None
    prompt_lookup: bool = False
    max_num_batched_tokens: int | None = None
    cache_bytes: int | None = None
    max_num_seqs: int = MAX_NUM_SEQS
    enable_prefix_caching: bool = True
    dynamic_split_fuse: bool = True

    @classmethod
    def parse(
        cls, positional: tuple[object, ...], named: Mapping[str, Any], properties: Mapping[str, Any]
    ) -> PipelineArguments:
        """Parse `[tokenizer,] [device,] [config]`, each of which may be `named` instead.

        Raises:
            InvalidTypeError: other arguments than these.
            InvalidValueError: a scheduler configuration with unsupported settings.
        """
        left = list(positional)
        if left and isinstance(left[0], ov.Tensor):
            raise InvalidTypeError(
                "a model as text with a tensor of weights is not taken: save it to a folder, and give that"
            )
        given = {name: value for name, value in named.items() if value is not None}
        for name, kind in (("tokenizer", Tokenizer), ("device", str), ("config", Mapping)):
            if left and isinstance(left[0], kind):
                if name in given:
                    raise InvalidTypeError(f"{name} is given twice: leave one out")
                given[name] = left.pop(0)
            if name in given and not isinstance(given[name], kind):
                raise InvalidTypeError(
                    f"{name}={given[name]!r}: expected a {kind.__name__}, got {type(given[name]).__name__}"
                )
        if left:
            raise InvalidTypeError(
                f"LLMPipeline: {left[0]!r} has no place; expected (models_path, [tokenizer,] device, config)"
            )
        joined = {**given.get("config", {}), **properties}
        _take_genai_properties(joined)
        lookup, scheduler = joined.pop("prompt_lookup", False), joined.pop("scheduler_config", None)
        if not isinstance(lookup, bool):
            raise InvalidTypeError(f"prompt_lookup={lookup!r}: expected True or False")
        adapters = PipelineAdapters.of(joined.pop("adapters", None))
        made = cls(given.get("tokenizer"), given.get("device", "CPU"), joined, adapters, lookup)
        if scheduler is not None:
            made._take(scheduler)
        return made

    def prefill_chunk(self, asked: object, sparse: bool = False) -> int:
        """Rows of a prefill pass: the given number, else that of a `SchedulerConfig`, else the default.

        Raises:
            InvalidValueError: the number is not positive, or less than a piece of a `sparse` prompt.
        """
        given = (asked, self.max_num_batched_tokens, DEFAULT_MAX_NUM_BATCHED_TOKENS)
        chunk = next(number for number in given if number is not None)
        if not isinstance(chunk, int) or chunk < 1:
            raise InvalidValueError(f"max_num_batched_tokens={chunk!r}: expected a number of at least 1")
        if sparse and chunk < PROMPT_PIECE:
            raise InvalidValueError(
                f"max_num_batched_tokens={chunk}: prefill='sparse' reads prompts in pieces of {PROMPT_PIECE} "
                "tokens; expected at least as many"
            )
        if sparse and not self.dynamic_split_fuse:
            raise InvalidValueError(
                "scheduler_config.dynamic_split_fuse=False: prefill='sparse' reads prompts in pieces; leave "
                "one of them out"
            )
        return chunk

    def engine(
        self,
        target: ModelRunner,
        drafter: Drafter | None,
        verify: VerifyMode,
        chunk: int,
        max_model_len: int,
        plan: MemoryPlan,
        config: OvspecConfig | None,
        grammars: Grammars,
    ) -> LLMEngine:
        """The engine of a pipeline; arguments as of `LLMEngine`, `chunk` rows of a pass."""
        # What ended requests leave in the target's cache: all of a limit that was given, or as planned.
        prefixes = (self.cache_bytes or plan.prefix_cache) if self.enable_prefix_caching else 0
        return LLMEngine(
            target,
            drafter,
            verify,
            chunk,
            self.max_num_seqs,
            max_model_len,
            config,
            self.cache_bytes,
            prefixes,
            grammars,
            self.dynamic_split_fuse,
        )

    def _take(self, scheduler: object) -> None:
        if not isinstance(scheduler, SchedulerConfig):
            kind = type(scheduler).__name__
            raise InvalidTypeError(f"scheduler_config: expected openvino_genai.SchedulerConfig, got {kind}")
        usual = SchedulerConfig()
        for name in fields_of(usual):
            value, default = getattr(scheduler, name), getattr(usual, name)
            # These objects do not define equality; a switch decides whether they are used.
            if name not in _HONOURED and isinstance(default, (int, bool, type(None))) and value != default:
                raise InvalidValueError(
                    f"scheduler_config.{name}={value!r} is not supported: leave it at {default!r}"
                )
        self.max_num_batched_tokens = int(scheduler.max_num_batched_tokens)
        self.cache_bytes = int(scheduler.cache_size) * _GIB or None
        self.max_num_seqs = int(scheduler.max_num_seqs)
        if self.max_num_seqs < 1:
            raise InvalidValueError(
                "scheduler_config.max_num_seqs=0: expected at least 1, else no request runs"
            )
        self.enable_prefix_caching = bool(scheduler.enable_prefix_caching)
        self.dynamic_split_fuse = bool(scheduler.dynamic_split_fuse)


def _take_genai_properties(properties: dict[str, Any]) -> None:
    """Honour or refuse what openvino_genai's pipelines take and no device knows."""
    attention = properties.pop("ATTENTION_BACKEND", "PA")
    if attention not in ("PA", "SDPA"):
        raise InvalidValueError(
            f"ATTENTION_BACKEND={attention!r}: expected 'PA', or 'SDPA', which runs as 'PA' here"
        )
    if attention == "SDPA":
        _LOG.warning(
            "ovspec: ATTENTION_BACKEND='SDPA': attention is paged all the same, which ovspec's pipelines "
            "need; leave it out"
        )
    if properties.pop("enable_save_ov_model", False):
        raise InvalidValueError(
            "enable_save_ov_model=True: IR of a GGUF file lies in ovspec's cache, none is written beside it; "
            "leave it out, and write a folder with: ovspec export -m FILE DIR"
        )
    # IR with our own operations gets them loaded in any case.
    for library in properties.pop("extensions", ()):
        if Path(str(library)) != Path(extension_path()):
            raise InvalidValueError(
                f"extensions: {str(library)!r} is not loaded, only ovspec's operations are; leave it out, "
                "and export the model without other operations"
            )
