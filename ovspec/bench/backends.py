"""The compiled models that a bench times, and a pass through one of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import openvino as ov

from ovspec.bench.cache_contents import fill
from ovspec.cache.cache import CachedSequence
from ovspec.engine.routing import sparse_attention
from ovspec.eval.report import precisions
from ovspec.operations.attention_config import AttentionConfig
from ovspec.operations.backends import Backends
from ovspec.operations.expert_budgets import ExpertBackend, ExpertConfig, expert_config
from ovspec.operations.ffn_budgets import ffn_config
from ovspec.operations.linear_backend import LinearBackend
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner
from ovspec_models.folder.sparse_verify import SparseVerify
from ovspec_ops import step_times

BACKENDS = ("stock", "dense", "sparse", "sparse_stock")
DEFAULT_BACKENDS = ("stock", "dense", "sparse")
# The compiled model behind each backend; `dense` and `sparse` share one, which holds the weights once. Its
# graph contains selection, which costs a dense pass 1% (processor time, 0.6B shape, 4k and 16k tokens).
MODELS = {"stock": "stock", "dense": "native", "sparse": "native", "sparse_stock": "portable"}
SPARSE = frozenset({"sparse", "sparse_stock"})
KEYS_AND_VALUES = ("key_cache.", "value_cache.")
# Steps that choose blocks.
SELECTION = ("key_summary", "block_select")

R = TypeVar("R", bound=ModelRunner)


def load_runner(
    runner: type[R],
    name: str,
    model: ov.Model,
    properties: Mapping[str, object],
    sparse: SparseVerify | None,
    linear: LinearBackend | None = None,
    device: str = "CPU",
) -> R:
    """Compile one of the models behind the backends.

    Args:
        name: "stock" is the plain paged transformation at the plugin's default properties, what OpenVINO does
            by itself (with logits for the sampled rows alone, as GenAI's pipelines have it); "native" takes
            our operations where the model has what they compute; "portable" limits attention and experts
            with stock operations; "skipping" is "native" with layers that a pass can leave out.
        model: a stateful model, which is transformed in place.
        sparse: what its sparse passes may read; without it there are none.
        linear: of "native", as in `ModelRunner`.
    """
    if name == "stock":
        return runner(model, device, AttentionConfig("stock"), properties, plugin_defaults=True)
    backend: ExpertBackend = "stock" if name == "portable" else "native"
    attention = AttentionConfig(backend)
    if sparse is not None and sparse.limits_attention:
        attention = sparse_attention(backend, sparse)
    experts = expert_config(backend, sparse) if sparse else None
    backends = Backends.resolve(
        model,
        device,
        properties,
        attention,
        experts or ExpertConfig(backend, optional=True),
        ffn_config(backend, sparse) if sparse else None,
        linear if name == "native" else None,
        skips_layers=name == "skipping",
    )
    return runner(model, backends=backends)


def random_context(runner: ModelRunner, tokens: int, rng: np.random.Generator) -> CachedSequence:
    """A sequence whose cache holds random keys and values for up to `tokens` tokens.

    Raises:
        ValueError: the model keeps more of a text than these.
    """
    if runner.recurrent:
        raise ValueError(
            "the bench fills keys and values with random numbers, and this model's layers of linear "
            "attention have none; measure it with its own texts: `ovspec eval`"
        )
    sequence = CachedSequence()
    runner.blocks.reserve(sequence, tokens)
    runner.cache.ensure(runner.blocks.num_blocks)
    for spec in runner.cache.specs:
        tensor = runner.cache.tensor(spec.name)
        on_host = isinstance(tensor, ov.Tensor)
        host = tensor if on_host else ov.Tensor(spec.element_type, tensor.get_shape())
        fill(host, spec, runner.block_size, rng)
        if not on_host:
            tensor.copy_from(host)
    return sequence


@dataclass(frozen=True, slots=True)
class Timing:
    """One pass.

    Attributes:
        ms: milliseconds.
        density: share of the context's cache that its attention read.
        cache_bytes: of keys and values in that share.
        steps_ms: milliseconds by kind of step, as of `ovspec_ops.step_times`; empty where the model has no
            operations of ours.
        experts_read: experts of a layer that it read, mean; `None` where nothing counts them.
        ffn_density: share of the feed-forward channels that it read; `None` likewise.
    """

    ms: float
    density: float
    cache_bytes: float
    steps_ms: Mapping[str, float]
    experts_read: float | None
    ffn_density: float | None


class Subject:
    """One compiled model with a cache full of random keys and values for `max_context` tokens."""

    def __init__(self, runner: ModelRunner, max_context: int, vocab_size: int) -> None:
        self.runner = runner
        self._rng = np.random.default_rng(0)
        self._vocab_size = vocab_size
        self._sequence = random_context(runner, max_context, self._rng)
        self._bytes_per_token = self._cache_bytes_per_token()
        # OpenVINO packs weights when they are first used.
        self.time_pass(1, 1, None)

    def time_pass(self, context: int, tokens: int, sparse: SparseVerify | None) -> Timing:
        """Time one pass of `tokens` new tokens behind a context, every row sampled, and roll it back.

        `sparse`: what it may read, `None` for all.
        """
        ids = self._rng.integers(0, self._vocab_size, tokens)
        self._sequence.length = self._sequence.summarised = context
        limits = self.runner.limits(sparse, context + tokens)
        with self._timed_steps() as steps:
            result = self.runner.forward([Rows(self._sequence, ids, sampled=tokens, **limits.rows)])
        self._sequence.rollback(context)
        stats = result.stats
        density = stats.attended_tokens / stats.context_tokens
        return Timing(
            stats.duration / 1e3,
            density,
            density * (context + tokens) * self._bytes_per_token,
            {kind: microseconds / 1e3 for kind, microseconds in steps.items()},
            sum(stats.experts_read) / len(stats.experts_read) if stats.experts_read else None,
            sum(stats.channels_read) / sum(stats.channels_held) if stats.channels_read else None,
        )

    def _timed_steps(self) -> AbstractContextManager[Mapping[str, float]]:
        return step_times() if self.runner.backends.native else nullcontext({})

    def _cache_bytes_per_token(self) -> float:
        """Bytes of keys and values that one token of the context takes, over all layers."""
        specs = (spec for spec in self.runner.cache.specs if spec.name.startswith(KEYS_AND_VALUES))
        block = sum(math.prod(spec.block_shape) * int(spec.element_type.size) for spec in specs)
        return block / self.runner.block_size

    @property
    def num_threads(self) -> int:
        """Threads that the compiled model uses; 0 on a device without."""
        if not self.runner.backends.on_cpu:
            return 0
        return int(self.runner.compiled.get_property("INFERENCE_NUM_THREADS"))

    def settings(self) -> dict[str, str | int | None]:
        """The OpenVINO settings that are in force.

        Returns:
            Precisions `inference`, `key_cache`, `value_cache`, what computes `linear` layers, and
            `row_bits`, to how many bits our operations round rows; `None` where there are none.
        """
        return {**precisions(self.runner), "linear": self.runner.linear, "row_bits": self.runner.row_bits}
