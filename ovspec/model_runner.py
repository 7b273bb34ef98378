"""One compiled paged model: rows of tokens in, logits of the sampled rows out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import openvino as ov
from numpy.typing import NDArray

import ovspec_ops
from ovspec.cache import BlockManager, CachedSequence, KVCache
from ovspec.compaction import compact
from ovspec.compile import cache_tensors, compile_paged, read_model
from ovspec.metrics import microseconds
from ovspec.pass_inputs import PassInputs
from ovspec.tables import Rows, attended_tokens, build_tables
from ovspec_transforms import PassReport, gather_logits, route_rows, select_blocks, to_paged

Attention = Literal["native", "stock"]
GPU_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Which attention verification rows take.

    Attributes:
        backend: "native" routes them to our operation, "stock" leaves stock PagedAttention alone.
        selects: whether the graph can select blocks; needs "native".
        anchor_layers: layers that select, or `None` for the default rule.
    """

    backend: Attention = "native"
    selects: bool = False
    anchor_layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.backend not in ("native", "stock"):
            raise ValueError(f"attention={self.backend!r}: expected 'native' or 'stock'")
        if self.selects and self.backend == "stock":
            raise ValueError(
                "attention='stock' verifies densely only: use verify='dense' or attention='native'"
            )


@dataclass(frozen=True, slots=True)
class PassStats:
    """What one pass did.

    Attributes:
        duration: time inside the model, microseconds.
        attended_tokens: context tokens read by verification attention, mean over layers and KV heads.
        context_tokens: those that dense attention would have read for the same rows.
    """

    duration: float = 0.0
    attended_tokens: float = 0.0
    context_tokens: float = 0.0


def transform(model: ov.Model, attention: AttentionConfig) -> list[PassReport]:
    """Turn the stateful IR of optimum-intel into the paged graph that `ModelRunner` runs, in place."""
    reports = [to_paged(model), gather_logits(model)]
    if attention.backend == "native":
        reports.append(route_rows(model))
    if attention.selects:
        reports.append(select_blocks(model, attention.anchor_layers))
    return reports


class ModelRunner:
    """A paged model on a device, with its cache and its block tables.

    Args:
        model: folder with `openvino_model.xml` as optimum-intel exports it, or the model itself.
        device: OpenVINO device, e.g. "CPU".
        attention: which attention verification rows take.
        properties: OpenVINO properties, as `openvino.Core.compile_model` takes them.
        plugin_defaults: leave to the plugin what `properties` does not say, the cache's precision included.

    Raises:
        ValueError: a folder, device, property or precision that can't be served; it says why.
        RuntimeError: the native library does not fit the OpenVINO at hand.
    """

    def __init__(
        self,
        model: str | Path | ov.Model,
        device: str = "CPU",
        attention: AttentionConfig | None = None,
        properties: Mapping[str, object] | None = None,
        plugin_defaults: bool = False,
    ) -> None:
        self.attention = attention or AttentionConfig()
        core = ov.Core()
        if self.attention.backend == "native":
            if not device.startswith("CPU"):
                raise ValueError(
                    f"device={device!r}: native attention runs on CPU only; pass attention='stock'"
                )
            ovspec_ops.load(core)
        graph = model if isinstance(model, ov.Model) else read_model(core, Path(model))
        self.reports = transform(graph, self.attention)
        self.compiled = compile_paged(core, graph, device, properties or {}, plugin_defaults)
        self.request = self.compiled.create_infer_request()
        self.cache = KVCache(self.request, cache_tensors(self.compiled))
        self.block_size = ovspec_ops.BLOCK_SIZE if device.startswith("CPU") else GPU_BLOCK_SIZE
        self.blocks = BlockManager(self.block_size)
        self.last_pass = PassStats()
        self._inputs = PassInputs(self.request, self._input_names())

    def _input_names(self) -> list[str]:
        """The compiled model's inputs beside the caches, all of which a pass provides."""
        caches = {tensor.name for tensor in cache_tensors(self.compiled)}
        provided = build_tables([Rows(CachedSequence(), np.zeros(1, np.int64))], self.block_size, native=True)
        names = [port.get_any_name() for port in self.compiled.inputs]
        unknown = sorted(set(names) - caches - provided.keys())
        if unknown:
            raise ValueError(
                f"the model has the input {unknown[0]!r}, which a text pipeline does not provide"
            )
        return [name for name in names if name not in caches]

    def forward(self, batch: Sequence[Rows]) -> NDArray[np.float32]:
        """Run one pass and advance every sequence by its rows.

        Returns:
            Logits f32 `[sampled rows of all sequences, vocab]`, valid until the next pass.
        """
        self.cache.ensure(self.blocks.required((rows.sequence, rows.context) for rows in batch))
        for rows in batch:
            self.blocks.reserve(rows.sequence, rows.context)
        inputs = build_tables(batch, self.block_size, native=self.attention.backend == "native")
        self._inputs.write(inputs)
        started = microseconds()
        self.request.infer()
        duration = microseconds() - started
        counts = self.request.get_tensor("selected_counts").data if self.attention.selects else None
        self.last_pass = PassStats(duration, *attended_tokens(counts, batch, self.block_size))
        for rows in batch:
            rows.sequence.length = rows.context
        logits: NDArray[np.float32] = self.request.get_tensor("logits").data
        return logits.reshape(-1, logits.shape[-1])

    def prefill(self, sequence: CachedSequence, tokens: NDArray[np.int64], chunk: int) -> NDArray[np.float32]:
        """Run tokens through the model in chunks of at most `chunk` rows.

        Returns:
            Logits f32 `[1, vocab]` of the last token.
        """
        duration, logits = 0.0, np.zeros((0, 0), np.float32)
        for begin in range(0, len(tokens), chunk):
            part = tokens[begin : begin + chunk]
            last = begin + chunk >= len(tokens)
            logits = self.forward([Rows(sequence, part, sampled=int(last))])
            duration += self.last_pass.duration
        self.last_pass = PassStats(duration)
        return logits

    def compact(self, sequence: CachedSequence, past: int, rows: Sequence[int]) -> None:
        """Keep the accepted path of a tree that the last pass verified; see `ovspec.compaction.compact`."""
        compact(self.cache, sequence, past, rows, self.block_size)

    def release(self, sequence: CachedSequence) -> None:
        """Give a sequence's blocks back."""
        self.blocks.release(sequence)
