"""What a pipeline will take of the machine's memory, before anything is compiled."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ovspec.compile import check_cache_precisions, precision_name, with_defaults
from ovspec.machine_memory import available_bytes
from ovspec_models import ModelInfo

# Fitted to the resident anonymous memory of pipelines of several shapes, formats and contexts (README).
_PROCESS_BYTES = 80 * 10**6  # libraries, tokenizer, graph
_ROW_BYTES = 27  # per row of a pass and channel of queries, keys and values
_SCORE_BYTES = 4  # per row, token of the context, and query head of a group with two more
_SAMPLED_ROWS = 16
_BLOCK = 32
_GB = 1e9


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """One model's part of the anonymous memory, in bytes.

    Attributes:
        weights: the plugin's copy in the layout of its kernels. `openvino_model.bin` is mapped beside it; the
            system drops those pages when it needs them, so they are not counted.
        cache: keys and values of the whole context.
        working: activations and scores of a pass over `max_num_batched_tokens` rows at its end, and logits.
    """

    weights: int
    cache: int
    working: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.cache + self.working


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What target and draft need for a context, against what there is.

    Attributes:
        context: tokens, of prompt and answer together.
        cache_precision: of keys and values.
        available: bytes that the machine, and the control group of this process, can give without swapping.
        largest_context: the most tokens that fit, in blocks of 32 and up to `context`; 0: none do.
        process: bytes of the process beside its models.
    """

    context: int
    cache_precision: str
    target: ModelPlan
    draft: ModelPlan | None
    available: int
    largest_context: int
    process: int = _PROCESS_BYTES

    @property
    def total(self) -> int:
        """Bytes in all."""
        return self.process + self.target.total + (self.draft.total if self.draft else 0)

    def as_json(self) -> dict[str, Any]:
        """The plan as a JSON object."""
        return {**asdict(self), "total": self.total}

    def check(self) -> None:
        """Refuse a plan that does not fit.

        Raises:
            ValueError: it gives the numbers, and what would make it fit.
        """
        if self.total <= self.available:
            return
        models = [self.target, *([self.draft] if self.draft else [])]
        weights, cache = sum(m.weights for m in models), sum(m.cache for m in models)
        working = self.total - weights - cache
        raise ValueError(
            f"a context of {self.context} tokens needs {self.total / _GB:.2f} GB (weights "
            f"{weights / _GB:.2f}, KV cache in {self.cache_precision} {cache / _GB:.2f}, working memory "
            f"{working / _GB:.2f}), {self.available / _GB:.2f} GB are available; "
            f"{self._remedy()}"
        )

    def _remedy(self) -> str:
        if self.largest_context:
            lower = "" if self.cache_precision == "u8" else ", or KV_CACHE_PRECISION=u8 (--property)"
            return f"ask for --max-context {self.largest_context} at most{lower}"
        without = self.total - (self.draft.total if self.draft else 0)
        if without <= self.available:
            return "leave the draft model out (--draft-model none)"
        return "export with fewer bytes a weight (--weight-format int8 or int4), or take a smaller model"


def plan_memory(
    info: ModelInfo,
    context: int,
    *,
    draft: ModelInfo | None = None,
    properties: Mapping[str, object] | None = None,
    max_num_batched_tokens: int = 512,
    device: str = "CPU",
    available: int | None = None,
) -> MemoryPlan:
    """Plan for a context, from what the folders say alone.

    Args:
        info: the target.
        context: tokens that its cache shall hold.
        draft: the draft model, or none.
        properties: OpenVINO properties of both, of which the cache's precision counts.
        max_num_batched_tokens: rows of a pass while a prompt is read.
        device: OpenVINO device.
        available: bytes that may be taken; `None` asks the machine.

    Raises:
        ValueError: a context that is no positive number, or beyond the model's positions, or a precision of
            the cache that is not supported.
    """
    if isinstance(context, bool) or not isinstance(context, int) or context < 1:
        raise ValueError(f"max_context={context!r}: expected a number of tokens of at least 1")
    if info.max_position_embeddings is not None and context > info.max_position_embeddings:
        raise ValueError(f"max_context={context}: the model has {info.max_position_embeddings} positions")
    settings = with_defaults(properties or {}, device)
    check_cache_precisions(settings)
    precision = precision_name(settings.get("KEY_CACHE_PRECISION", settings.get("KV_CACHE_PRECISION", "f16")))
    mode = str(settings.get("KEY_CACHE_QUANT_MODE", "BY_CHANNEL"))

    def part(model: ModelInfo, context: int) -> ModelPlan:
        tokens = -(-context // _BLOCK) * _BLOCK + _BLOCK  # one block is being filled
        return ModelPlan(
            weights=model.weight_bytes,
            cache=tokens * model.kv_cache_bytes_per_token(precision, mode),
            working=_working_bytes(model, min(context, max_num_batched_tokens), context),
        )

    def total(blocks: int) -> int:
        parts = [part(model, blocks * _BLOCK).total for model in (info, draft) if model]
        return _PROCESS_BYTES + sum(parts)

    there = available_bytes() if available is None else available
    return MemoryPlan(
        context=context,
        cache_precision=precision,
        target=part(info, context),
        draft=part(draft, context) if draft else None,
        available=there,
        largest_context=_BLOCK * bisect_right(range(1, context // _BLOCK + 1), there, key=total),
    )


def _working_bytes(model: ModelInfo, rows: int, context: int) -> int:
    channels = model.head_dim * (model.num_attention_heads + 2 * model.num_key_value_heads)
    group = model.num_attention_heads // model.num_key_value_heads
    scores = _SCORE_BYTES * (group + 2) * context
    return rows * (_ROW_BYTES * channels + scores) + 4 * _SAMPLED_ROWS * model.vocab_size
