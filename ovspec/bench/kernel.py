"""The timing of `ovspec bench kernel`: the attention operation by itself, without a model around it."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import openvino as ov

import ovspec_ops
from ovspec.bench.cache_contents import fill
from ovspec.bench.rounds import check_at_least, check_once
from ovspec.cache.cache import CacheTensor
from ovspec.devices.huge_pages import advise_huge_pages
from ovspec.devices.properties import CACHE_PRECISIONS
from ovspec.memory.machine_memory import available_bytes
from ovspec.modes.row_limits import MAX_VERIFY_ROWS
from ovspec_ops import BLOCK_SIZE, loader
from ovspec_ops.verify_attention import pack_tables

QUANT_MODES = ("BY_TOKEN", "BY_CHANNEL")
# Consecutive calls use different caches, which together are much larger than the processor's caches. So keys
# and values come from memory, as those of a model's layers do.
_COLD_BYTES = 1 << 29
_MOST_CACHES = 32


@dataclass(frozen=True, slots=True)
class KernelTiming:
    """One setting: median milliseconds of a call and what that makes per second.

    Attributes:
        context, tokens: tokens in the cache and rows of the call.
        cache_bytes: bytes of keys and values that a call reads.
        multiply_adds: of both products of attention, without what masks hide.
    """

    context: int
    tokens: int
    isa: str
    ms: float
    cache_bytes: int
    multiply_adds: int

    def as_json(self) -> dict[str, Any]:
        """The figures by name."""
        setting = {name: getattr(self, name) for name in ("context", "tokens", "isa", "ms")}
        return {**setting, "cache_gb_s": self.gb_s, "gmac_s": self.gmac_s}

    @property
    def gb_s(self) -> float:
        """Gigabytes (1e9 bytes) of cache per second."""
        return self.cache_bytes / self.ms / 1e6

    @property
    def gmac_s(self) -> float:
        """Multiply-adds per second, in 1e9."""
        return self.multiply_adds / self.ms / 1e6


@dataclass(frozen=True, slots=True)
class KernelBench:
    """What to time: dense attention of a layer.

    Attributes:
        contexts: tokens of a sequence in the cache.
        tokens: rows of a sequence in a call.
        sequences: of a call.
        heads, kv_heads, head_size: of the layer.
        precision: of the cache: "f32", "f16", "bf16" or "u8".
        quant_mode: of u8 keys: "BY_TOKEN" or "BY_CHANNEL".
        isas: instruction sets; none: the one in use.
        repeat: timed calls per figure.
    """

    contexts: tuple[int, ...]
    tokens: tuple[int, ...]
    sequences: int
    heads: int
    kv_heads: int
    head_size: int
    precision: str
    quant_mode: str
    isas: tuple[str, ...]
    repeat: int

    def __post_init__(self) -> None:
        counts = {"context": min(self.contexts), "tokens": min(self.tokens), "sequences": self.sequences}
        check_at_least(1, **counts, kv_heads=self.kv_heads, head_size=self.head_size, repeat=self.repeat)
        for option, named in (("--context", self.contexts), ("--tokens", self.tokens), ("--isa", self.isas)):
            check_once(option, named)
        if max(self.tokens) > MAX_VERIFY_ROWS:
            raise ValueError(f"--tokens {max(self.tokens)}: expected at most {MAX_VERIFY_ROWS}")
        if self.heads < 1 or self.heads % self.kv_heads:
            raise ValueError(f"--heads {self.heads}: expected a multiple of --kv-heads {self.kv_heads}")
        values = 2 * max(self.contexts) * self.kv_heads + 8 * max(self.tokens) * self.heads
        needed, available = self.sequences * values * self.head_size, available_bytes()
        if needed > available:
            raise ValueError(
                f"not enough memory for one call: about {needed / 1e9:.1f} GB are needed, "
                f"{available / 1e9:.1f} GB are available; give a shorter --context, or fewer --sequences, "
                "--heads or channels"
            )

    def title(self) -> str:
        """What is timed, in a line."""
        mode = f" {self.quant_mode.lower().replace('_', ' ')}" if self.precision == "u8" else ""
        return (
            f"sequences: {self.sequences}; {self.heads} heads, {self.kv_heads} KV heads, head size "
            f"{self.head_size}, keys {self.precision}{mode}; median of {self.repeat}"
        )

    def run(self) -> list[KernelTiming]:
        """Time everything, the instruction sets in turn, and leave the one in use as it was."""
        before = loader.active_isa()
        isas = self.isas or (before,)
        try:
            for isa in isas:
                loader.set_isa(isa)  # before the long work
            return [t for context in self.contexts for tokens in self.tokens
                    for t in self._time(context, tokens, isas)]  # fmt: skip
        finally:
            loader.set_isa(before)

    def _time(self, context: int, tokens: int, isas: tuple[str, ...]) -> list[KernelTiming]:
        rng = np.random.default_rng(0)
        blocks = self.sequences * -(-(context + tokens) // BLOCK_SIZE)
        specs = self._specs()
        size = sum(blocks * int(np.prod(spec.block_shape)) * int(spec.element_type.size) for spec in specs)
        calls = []
        for _ in range(min(_MOST_CACHES, max(1, _COLD_BYTES // size))):
            caches = [ov.Tensor(s.element_type, ov.Shape([blocks, *s.block_shape])) for s in specs]
            for tensor, spec in zip(caches, specs, strict=True):
                advise_huge_pages(tensor)  # as the engine's
                fill(tensor, spec, BLOCK_SIZE, rng)
            calls.append(self._inputs(context, tokens, caches, rng))
        sizes = {"kv_heads": self.kv_heads, "k_size": self.head_size, "v_size": self.head_size}
        parameters = [ov.op.Parameter(t.element_type, ov.PartialShape([-1] * len(t.shape))) for t in calls[0]]
        attributes = {**sizes, "scale": self.head_size**-0.5}
        node = ovspec_ops.create("VerifyAttention", parameters, attributes)
        out = [ov.Tensor(ov.Type.f32, ov.Shape([self.sequences * tokens, self.heads * self.head_size]))]
        seconds: dict[str, list[float]] = {isa: [] for isa in isas}
        for turn in range(1 + self.repeat):
            for isa in isas:
                loader.set_isa(isa)
                started = perf_counter()
                for inputs in calls:
                    node.evaluate(out, inputs)
                if turn:
                    seconds[isa].append((perf_counter() - started) / len(calls))
        work = 2 * self.sequences * tokens * self.heads * context * self.head_size
        return [KernelTiming(context, tokens, isa, 1e3 * median(seconds[isa]), size, work) for isa in isas]

    def _specs(self) -> list[CacheTensor]:
        dtype, size = CACHE_PRECISIONS[self.precision], self.head_size
        real = (self.kv_heads, BLOCK_SIZE, size + 8 * (self.precision == "u8"))
        by_channel = self.precision == "u8" and self.quant_mode == "BY_CHANNEL"
        keys = (self.kv_heads, BLOCK_SIZE + 8, size) if by_channel else real
        return [CacheTensor("key_cache.0", dtype, keys), CacheTensor("value_cache.0", dtype, real)]

    def _inputs(
        self, context: int, tokens: int, caches: list[ov.Tensor], rng: np.random.Generator
    ) -> list[ov.Tensor]:
        count, blocks = self.sequences, caches[0].shape[0]
        rows = rng.standard_normal((count * tokens, self.heads * self.head_size)).astype(np.float32)
        begins = np.arange(count + 1)
        tables = (begins * tokens, [context] * count, range(blocks), begins * (blocks // count))
        packed = pack_tables(*(np.array(values, np.int32) for values in tables))
        return [ov.Tensor(rows), *caches, ov.Tensor(np.zeros_like(rows)), ov.Tensor(packed)]
