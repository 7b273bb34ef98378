"""The compiled models that a bench times, and a pass through one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.bench.cache_contents import cache_layout, fill
from ovspec.cache import BlockManager, CachedSequence, KVCache
from ovspec.compile import cache_tensors
from ovspec.model_runner import AttentionConfig, ModelRunner, PassStats
from ovspec.tables import Rows, build_tables
from ovspec.verify_config import SparseVerify
from ovspec_ops import BLOCK_SIZE
from ovspec_transforms import gather_logits, to_paged

BACKENDS = ("stock", "dense", "sparse")
# Backends that run the same compiled model, which holds the weights once. That selection stands in its
# graph costs a dense pass 1% (processor time, 0.6B shape, 4k and 16k tokens).
SHARING = {"stock": "stock", "dense": "native", "sparse": "native"}


class Runner(Protocol):
    """What the bench needs of a paged model."""

    compiled: ov.CompiledModel
    cache: KVCache
    blocks: BlockManager
    last_pass: PassStats

    def forward(self, batch: Sequence[Rows]) -> NDArray[np.float32]:
        """Run one pass."""
        ...


class StockRunner:
    """The plain paged transformation at the plugin's default properties: what OpenVINO does by itself.

    `ModelRunner` chooses a cache precision, so it can't stand for the defaults.
    """

    def __init__(self, model: ov.Model) -> None:
        to_paged(model)
        # GenAI's pipelines gather the sampled rows too; without it every row would pay the LM head.
        gather_logits(model)
        self.compiled = ov.Core().compile_model(model, "CPU")
        self._request = self.compiled.create_infer_request()
        self._names = {port.get_any_name() for port in self.compiled.inputs}
        self.cache = KVCache(self._request, cache_tensors(self.compiled))
        self.blocks = BlockManager(BLOCK_SIZE)
        self.last_pass = PassStats()

    def forward(self, batch: Sequence[Rows]) -> NDArray[np.float32]:
        """Run one pass; logits f32 `[sampled rows of all sequences, vocab]`."""
        inputs = build_tables(batch, self.blocks.block_size, native=False)
        for name in self._names & inputs.keys():
            self._request.set_tensor(name, ov.Tensor(inputs[name], shared_memory=True))
        started = perf_counter()
        self._request.infer()
        context = float(sum(rows.context for rows in batch))
        self.last_pass = PassStats(1e6 * (perf_counter() - started), context, context)
        for rows in batch:
            rows.sequence.length = rows.context
        logits: NDArray[np.float32] = self._request.get_tensor("logits").data
        return logits.reshape(-1, logits.shape[-1])


@dataclass(frozen=True, slots=True)
class Timing:
    """One pass: milliseconds, and the share of the context's cache that its attention read."""

    ms: float
    density: float


class Subject:
    """One compiled model with a cache full of random keys and values, ready for any context.

    Args:
        model: a stateful model, which is transformed in place.
        native: our attention, or stock OpenVINO.
        selects: whether the native model can select blocks.
        anchor_layers: as in `AttentionConfig`.
        max_context: tokens that the cache must hold.
        vocab_size: token ids are drawn below it.
    """

    def __init__(
        self,
        model: ov.Model,
        native: bool,
        selects: bool,
        anchor_layers: tuple[int, ...] | None,
        max_context: int,
        vocab_size: int,
    ) -> None:
        self._rng = np.random.default_rng(0)
        self._vocab_size = vocab_size
        self.runner: Runner
        if native:
            self.runner = ModelRunner(model, "CPU", AttentionConfig("native", selects, anchor_layers))
        else:
            self.runner = StockRunner(model)
        self._sequence = CachedSequence()
        block_size = self.runner.blocks.block_size
        self.runner.blocks.reserve(self._sequence, max_context)
        self.runner.cache.ensure(self.runner.blocks.num_blocks)
        for spec in cache_tensors(self.runner.compiled):
            fill(self.runner.cache.tensor(spec.name), spec, block_size, self._rng)

    def time_pass(self, context: int, tokens: int, budget: int | None) -> Timing:
        """Time one pass of `tokens` new tokens behind a context, every row sampled, and roll it back.

        Args:
            context: tokens in the cache before the pass.
            tokens: rows of the pass.
            budget: tokens of the context that sparse attention may read, `None` for all.
        """
        ids = self._rng.integers(0, self._vocab_size, tokens)
        self._sequence.length = context
        blocks = -1
        if budget is not None:
            blocks = SparseVerify(budget=budget).budget_blocks(
                context + tokens, self.runner.blocks.block_size
            )
        self.runner.forward([Rows(self._sequence, ids, sampled=tokens, budget=blocks)])
        self._sequence.rollback(context)
        stats = self.runner.last_pass
        return Timing(stats.duration / 1e3, stats.attended_tokens / stats.context_tokens)

    @property
    def num_threads(self) -> int:
        """Threads that the compiled model uses."""
        return int(self.runner.compiled.get_property("INFERENCE_NUM_THREADS"))

    def settings(self) -> dict[str, str]:
        """Precisions in force: `inference`, `key_cache`, `value_cache`."""
        precision = self.runner.compiled.get_property("INFERENCE_PRECISION_HINT")
        block_size = self.runner.blocks.block_size
        found = {"inference": str(precision.get_type_name())}
        for spec in cache_tensors(self.runner.compiled):
            side = spec.name.split(".")[0]
            if side in ("key_cache", "value_cache"):
                found[side] = cache_layout(spec, block_size)
        return found
