"""The memory that a pipeline will need, planned before anything is compiled."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ovspec.cache.sequence_states import MOST_STATES
from ovspec.devices.devices import is_cpu, is_gpu
from ovspec.devices.properties import default_cache_precision, precision_name
from ovspec.memory.device_memory import device_bytes
from ovspec.memory.model_plan import (
    PROCESS_BYTES,
    SAMPLED_ROWS,
    STATES,
    STATES_UNDRAFTED,
    CacheUse,
    ModelPlan,
    cache_use,
    plan_model,
)
from ovspec.modes.row_limits import MAX_NUM_ASSISTANT_TOKENS
from ovspec.operations.backends import Backends
from ovspec.operations.expert_budgets import ExpertConfig
from ovspec.passes.prompt_pieces import DEFAULT_MAX_NUM_BATCHED_TOKENS
from ovspec_models import ModelInfo, WeightSizes
from ovspec_ops import BLOCK_SIZE

_GB = 1e9
# What ended requests leave in the target's cache before it grows: so much, and no larger a share of the
# memory that the plan leaves. A draft model's cache, which is smaller, keeps a part of that.
PREFIX_CACHE_BYTES = 2**30
_PREFIX_CACHE_SHARE = 8
DRAFT_PREFIX_SHARE = 4


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Anonymous memory that target and draft need for a context, and the memory that is available.

    Attributes:
        context: tokens, of prompt and answer together.
        available: bytes that the machine, and the control groups of this process, can give without swapping;
            or those that the user allows.
        largest_context: the most tokens that fit, in blocks of 32 and up to `context`; 0: none do.
        adapters: bytes of LoRA adapters.
        pictures: bytes that reading pictures takes, and what is kept of them.
    """

    context: int
    cache_precision: str
    target: ModelPlan
    draft: ModelPlan | None
    available: int
    largest_context: int
    adapters: int = 0
    pictures: int = 0
    process: int = PROCESS_BYTES
    device: str = "CPU"

    @property
    def total(self) -> int:
        """Peak bytes: while a model is made, or with the whole context in the cache."""
        return self.beside + _peak(self.target, self.draft)

    @property
    def beside(self) -> int:
        """Bytes of all but target and draft."""
        return self.process + self.adapters + self.pictures

    @property
    def prefix_cache(self) -> int:
        """Bytes beside `total` that ended requests may leave in the target's cache.

        A part of what `total` leaves, so that they never take what the context needs; of all that is
        available where the plan was overruled.
        """
        left = self.available - self.total if self.total <= self.available else self.available
        return min(PREFIX_CACHE_BYTES, left // _PREFIX_CACHE_SHARE)

    def as_json(self) -> dict[str, Any]:
        """The plan as a JSON object."""
        return {**asdict(self), "total": self.total, "prefix_cache": self.prefix_cache}

    def check(self) -> None:
        """Raise an error if the plan does not fit.

        Raises:
            ValueError: it gives the numbers, and what would make it fit.
        """
        if self.total <= self.available:
            return
        models = [self.target, *([self.draft] if self.draft else [])]
        weights, cache = sum(m.weights for m in models), sum(m.cache for m in models)
        if self.starts_higher:
            start = self.total - self.beside - weights
            rest = f"{start / _GB:.2f} beside them while they are laid out"
        else:
            working = self.total - self.adapters - self.pictures - weights - cache
            rest = f"KV cache in {self.cache_precision} {cache / _GB:.2f}, working memory {working / _GB:.2f}"
        for name, size in (("adapters", self.adapters), ("pictures", self.pictures)):
            rest = f"{name} {size / _GB:.2f}, {rest}" if size else rest
        where = "" if is_cpu(self.device) else f" on {self.device}"
        raise ValueError(
            f"a context of {self.context} tokens needs {self.total / _GB:.2f} GB (weights "
            f"{weights / _GB:.2f}, {rest}), {self.available / _GB:.2f} GB are available{where}; "
            f"{self._remedy()}; or, as this is an estimate, allow more with --memory-limit SIZE or "
            "--no-memory-check (memory_limit= of LLMPipeline)"
        )

    @property
    def starts_higher(self) -> bool:
        """Whether the peak is while the models are made."""
        steady = self.target.steady + (self.draft.steady if self.draft else 0)
        return _peak(self.target, self.draft) > steady

    def _remedy(self) -> str:
        if self.largest_context:
            # A GPU has no u8 cache beside f32.
            f32 = is_gpu(self.device) and self.cache_precision == "f32"
            smaller = "INFERENCE_PRECISION_HINT=f16" if f32 else "KV_CACHE_PRECISION=u8"
            lower = "" if self.cache_precision == "u8" else f", or {smaller} (--property)"
            return f"ask for --max-context {self.largest_context} at most{lower}"
        if self.adapters and self.total - self.adapters <= self.available:
            return "give fewer adapters, or some of lower rank"
        if self.draft and self.beside + _peak(self.target, None) <= self.available:
            return "leave the draft model out (--draft-model none)"
        return "export with fewer bytes a weight (--weight-format int8 or int4), or take a smaller model"


def _peak(target: ModelPlan, draft: ModelPlan | None) -> int:
    """The most bytes of models that are made one after the other."""
    if draft is None:
        return max(target.weights + target.start, target.steady)
    both = target.weights + draft.weights
    return max(target.weights + target.start, both + draft.start, target.steady + draft.steady)


def _cache_of(model: ModelInfo, settings: Mapping[str, object]) -> tuple[str, int]:
    """The precision of a model's cache, and its bytes per token."""
    default = default_cache_precision(settings)
    precision = precision_name(
        settings.get("KEY_CACHE_PRECISION", settings.get("KV_CACHE_PRECISION", default))
    )
    mode = str(settings.get("KEY_CACHE_QUANT_MODE", "BY_CHANNEL"))
    groups = (str(settings.get(f"{side}_CACHE_GROUP_SIZE", "")) for side in ("KEY", "VALUE"))
    sizes = (int(size) if size.isdecimal() else 0 for size in groups)  # others the device refuses
    return precision, model.kv_cache_bytes_per_token(precision, mode, *sizes)


def plan_memory(
    info: ModelInfo,
    context: int,
    *,
    draft: ModelInfo | None = None,
    properties: Mapping[str, object] | None = None,
    max_num_batched_tokens: int = DEFAULT_MAX_NUM_BATCHED_TOKENS,
    device: str = "CPU",
    available: int | None = None,
    backends: Backends | None = None,
    draft_backends: Backends | None = None,
    adapters: int = 0,
    pictures: int = 0,
) -> MemoryPlan:
    """Plan for a context, from the files of the folders only.

    Args:
        context: tokens that its cache shall hold.
        draft: the draft model on the same device, or none.
        properties, device: of a model whose backends are not given.
        max_num_batched_tokens: rows of a pass while a prompt is read.
        available: bytes that may be taken; `None` asks the machine.
        backends, draft_backends: what computes them; `None`: the defaults.
        adapters: bytes of LoRA adapters, which are in memory already.
        pictures: bytes for reading pictures.

    Raises:
        ValueError: a context that is no positive number, or beyond the model's positions, a precision of
            the cache that is not supported, or as `Backends.resolve`.
    """
    if isinstance(context, bool) or not isinstance(context, int) or context < 1:
        raise ValueError(f"max_context={context!r}: expected a number of tokens of at least 1")
    if info.max_position_embeddings is not None and context > info.max_position_embeddings:
        why = info.why_no_more_positions
        has = f"the model has {info.max_position_embeddings} positions{why and f'; {why}'}"
        raise ValueError(f"max_context={context}: {has}")
    models = _Models.of(info, draft, properties, device, backends, draft_backends)
    there = device_bytes(models.device) + adapters if available is None else available

    def plans(context: int) -> list[ModelPlan]:
        return models.plans(context, min(context, max_num_batched_tokens))

    def total(blocks: int) -> int:
        return adapters + pictures + _total(plans(blocks * BLOCK_SIZE))

    target, *drafts = plans(context)
    return MemoryPlan(
        context=context,
        cache_precision=models.cache_precision,
        target=target,
        draft=drafts[0] if drafts else None,
        available=there,
        largest_context=BLOCK_SIZE * bisect_right(range(1, context // BLOCK_SIZE + 1), there, key=total),
        adapters=adapters,
        pictures=pictures,
        device=models.device,
    )


def cache_room(
    info: ModelInfo,
    max_num_seqs: int,
    max_model_len: int,
    available: int,
    *,
    draft: ModelInfo | None = None,
    max_num_batched_tokens: int = DEFAULT_MAX_NUM_BATCHED_TOKENS,
    backends: Backends | None = None,
    draft_backends: Backends | None = None,
    adapters: int = 0,
    pictures: int = 0,
    share: int = 1,
    drafts: bool = True,
) -> int:
    """Bytes of the target's keys and values for which memory suffices while requests run together.

    A pass has rows, and logits, for the longest draft of every request: clients may ask for it.

    Args:
        max_num_seqs: requests that run at a time.
        max_model_len: tokens that each may have; more than all of them have is no use.
        available: bytes that may be taken.
        share: pipelines like this one among which they are divided.
        drafts: whether requests have drafts, and so states of linear attention behind each of their tokens.
        draft, max_num_batched_tokens, backends, draft_backends, adapters, pictures: as of
            `plan_memory`.

    Raises:
        ValueError: nothing is left beside the models and such a pass.
    """
    models = _Models.of(info, draft, None, "CPU", backends, draft_backends)
    sampled = max(SAMPLED_ROWS, max_num_seqs * (MAX_NUM_ASSISTANT_TOKENS + 1))
    rows = max(max_num_batched_tokens, sampled)
    states = max_num_seqs * STATES if drafts else MOST_STATES + max_num_seqs * STATES_UNDRAFTED
    available //= share

    def total(blocks: int) -> int:
        return adapters + pictures + _total(models.plans(blocks * BLOCK_SIZE, rows, sampled, states))

    if total(1) > available:
        loaded = "models" + ", adapters" * bool(adapters) + ", pictures" * bool(pictures)
        each = f" to each of {share} replicas" if share > 1 else ""
        raise ValueError(
            f"--max-num-seqs {max_num_seqs}: {loaded} and a pass of {max_num_seqs} drafts of "
            f"{MAX_NUM_ASSISTANT_TOKENS} tokens need {total(1) / _GB:.2f} GB, {available / _GB:.2f} GB are "
            f"available{each}; lower it, or bound keys and values with --cache-size SIZE"
        )
    most = max_num_seqs * -(-max_model_len // BLOCK_SIZE)
    blocks = bisect_right(range(1, most + 1), available, key=total)
    return blocks * BLOCK_SIZE * models.token_bytes


@dataclass(frozen=True, slots=True)
class _Models:
    """Target and, on the same device, draft, with what their plans are made from."""

    device: str
    cache_precision: str
    token_bytes: int
    _made: tuple[tuple[ModelInfo, WeightSizes, Backends, CacheUse, int], ...]

    @classmethod
    def of(
        cls,
        info: ModelInfo,
        draft: ModelInfo | None,
        properties: Mapping[str, object] | None,
        device: str,
        backends: Backends | None,
        draft_backends: Backends | None,
    ) -> _Models:
        """Read them; arguments as of `plan_memory`."""
        made = []
        for model, how in [(info, backends), *([(draft, draft_backends)] if draft else [])]:
            how = how or Backends.resolve(
                model.folder, device, properties, experts=ExpertConfig(optional=True)
            )
            token_bytes = _cache_of(model, how.properties)[1]
            made.append((model, model.weight_sizes(), how, cache_use(model.folder, how), token_bytes))
        first = made[0]
        return cls(first[2].device, _cache_of(info, first[2].properties)[0], first[4], tuple(made))

    def plans(
        self, tokens: int, rows: int, sampled: int = SAMPLED_ROWS, states: int = STATES
    ) -> list[ModelPlan]:
        """The plans of both for so many tokens in the cache, and a pass of so many rows."""
        return [
            plan_model(model, sizes, how, cache, tokens, rows, token_bytes, sampled, states)
            for model, sizes, how, cache, token_bytes in self._made
        ]


def _total(plans: list[ModelPlan]) -> int:
    target, *drafts = plans
    return PROCESS_BYTES + _peak(target, drafts[0] if drafts else None)
