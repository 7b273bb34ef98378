"""Runs every operation in compiled graphs against its reference, on every instruction set of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec_ops import loader
from ovspec_ops.block_select.reference import block_select
from ovspec_ops.cache_write.reference import cache_write, rounded
from ovspec_ops.common.byte_values import ISAS
from ovspec_ops.common.cache_layout import BLOCK_SIZE
from ovspec_ops.decoder_layers.reference import VERSION, decoder_layers
from ovspec_ops.gated_mlp.layout import f16_bytes, pack_columns_u4, pack_columns_u8, pack_rows_u4
from ovspec_ops.gated_mlp.reference import dequantise as dequantise_mlp
from ovspec_ops.gated_mlp.reference import gated_mlp
from ovspec_ops.key_summary.reference import key_summary, means, summarise, summary_bytes
from ovspec_ops.linear.layout import pack_linear
from ovspec_ops.linear.reference import linear
from ovspec_ops.moe.reference import dequantise, expert_budget, sparse_moe
from ovspec_ops.verify_attention import pack_tables, verify_attention

KV_HEADS, GROUP, K_SIZE, V_SIZE = 2, 2, 72, 40
# Tokens in the cache and rows of three sequences; the second one is not under verification.
PAST, ROWS, VERIFIED = (300, 40, 31), (1, 9, 5), (True, False, True)

EXPERTS = 9

#: What `pack_tables` packs, in its order.
TABLES = (
    "subsequence_begins",
    "verify_past_lens",
    "verify_block_indices",
    "verify_block_indices_begins",
    "verify_parents",
)

SIZES = {"kv_heads": KV_HEADS, "k_size": K_SIZE}

Inputs = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class CheckResult:
    """One comparison; `error` is the largest absolute difference to the reference."""

    name: str
    isa: str
    error: float
    tolerance: float

    @property
    def ok(self) -> bool:
        """Whether the operation matches its reference; a NaN never does."""
        return bool(self.error <= self.tolerance)


def _cache(rng: np.random.Generator, blocks: int, size: int, quantised: bool) -> NDArray[Any]:
    values = rng.standard_normal((blocks, KV_HEADS, BLOCK_SIZE, size)).astype(np.float32)
    return rounded(values) if quantised else values


def _inputs(rng: np.random.Generator, quantised: bool) -> Inputs:
    """Inputs of VerifyAttention by name, without a selection; slots past a sequence's end are poisoned."""
    needed = [-(-(p + r) // BLOCK_SIZE) for p, r in zip(PAST, ROWS, strict=True)]
    ids = rng.permutation(sum(needed)).tolist()
    tables = [[ids.pop() for _ in range(n)] for n in needed]
    keys = _cache(rng, sum(needed), K_SIZE, quantised)
    values = _cache(rng, sum(needed), V_SIZE, quantised)
    for table, past, rows in zip(tables, PAST, ROWS, strict=True):
        for cache in (keys, values):
            cache[table[-1], :, (past + rows - 1) % BLOCK_SIZE + 1 :].view(np.uint8)[...] = 0xFF
    whole = [t if v else [] for t, v in zip(tables, VERIFIED, strict=True)]
    heads = KV_HEADS * GROUP
    return {
        "query": rng.standard_normal((sum(ROWS), heads * K_SIZE)).astype(np.float32),
        "key_cache": keys,
        "value_cache": values,
        "attention": rng.standard_normal((sum(ROWS), heads * V_SIZE)).astype(np.float32),
        "subsequence_begins": np.cumsum([0, *ROWS]).astype(np.int32),
        "verify_past_lens": np.array([p if v else -1 for p, v in zip(PAST, VERIFIED, strict=True)], np.int32),
        "verify_block_indices": np.array([b for t in whole for b in t], np.int32),
        "verify_block_indices_begins": np.cumsum([0, *map(len, whole)]).astype(np.int32),
    }


def _run(core: ov.Core, op_type: str, inputs: Inputs, attributes: Mapping[str, Any]) -> list[NDArray[Any]]:
    parameters = [
        ov.op.Parameter(ov.Type(x.dtype.type), ov.PartialShape([-1] * x.ndim)) for x in inputs.values()
    ]
    node = loader.create(op_type, parameters, attributes)
    model = ov.Model([ov.op.Result(output) for output in node.outputs()], parameters)
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    request = compiled.create_infer_request()
    for index, array in enumerate(inputs.values()):
        request.set_input_tensor(index, ov.Tensor(array, shared_memory=True))
    request.infer()
    return [request.get_output_tensor(i).data.copy() for i in range(len(compiled.outputs))]


def _worst(got: NDArray[Any], reference: NDArray[Any]) -> float:
    return float(np.abs(got.astype(np.float64) - reference).max())


def _check_write(core: ov.Core) -> float:
    """CacheWrite: the largest difference of a byte behind scales and zero points."""
    rng = np.random.default_rng(7)
    slots = rng.permutation(3 * BLOCK_SIZE)[: sum(ROWS)].astype(np.int32)
    sizes = {"key": K_SIZE, "value": V_SIZE}
    tensors: Inputs = {
        name: rng.standard_normal((len(slots), KV_HEADS * size)).astype(np.float32)
        for name, size in sizes.items()
    }
    tensors |= {f"{name}_cache": _cache(rng, 3, size, True) for name, size in sizes.items()}
    key, value, keys, values = tensors.values()
    expected = cache_write(key, value, keys, values, slots)
    _run(core, "CacheWrite", tensors | {"slot_mapping": slots}, {**SIZES, "v_size": V_SIZE})
    written = zip((keys, values), expected, strict=True)
    return max(_worst(got[..., 8:], want[..., 8:]) for got, want in written)


def _check_summary(core: ov.Core, inputs: Inputs) -> float:
    """KeySummary over a pass that writes the sequences under verification: share of mean keys that differ.

    1 where one differs by more than 0.5: a rounding to the neighbour of its 16 levels differs by less.
    """
    active = np.array(VERIFIED)
    begins = np.cumsum([0, *np.where(active, ROWS, 0)]).astype(np.int32)
    size = (len(inputs["key_cache"]), KV_HEADS, summary_bytes(K_SIZE))
    summary = np.zeros(size, np.uint8)
    past = np.where(active, inputs["verify_past_lens"], 0).astype(np.int32)
    tables = pack_tables(begins, past, inputs["verify_block_indices"], inputs["verify_block_indices_begins"])
    lengths = {"verify_tables": tables, "summarised_lens": np.where(active, past, -1).astype(np.int32)}
    expected = key_summary(inputs["key_cache"], summary, *lengths.values(), k_size=K_SIZE)
    caches = {"key_cache": inputs["key_cache"], "attention": inputs["attention"][: begins[-1]]}
    _run(core, "KeySummary", caches | {"key_summary": summary} | lengths, SIZES)
    got, want = means(summary, K_SIZE), means(expected, K_SIZE)
    if _worst(got, want) > 0.5:
        return 1.0
    return float((np.abs(got - want) > 2e-6).sum() / np.count_nonzero(want))  # others were not written


def _check_select(core: ov.Core, inputs: Inputs, rule: str) -> tuple[float, Inputs]:
    """BlockSelect: entries that differ; its lists, as VerifyAttention's."""
    blocks = inputs["key_cache"]
    attributes: dict[str, Any] = {**SIZES, "rule": rule, "scale": K_SIZE**-0.5}
    select: Inputs = {
        "query": inputs["query"],
        "key_summary": np.stack([summarise(block, BLOCK_SIZE, K_SIZE) for block in blocks]),
        "summary_token": np.zeros(1, np.int32),
        "verify_tables": pack_tables(*(inputs[name] for name in TABLES if name in inputs)),
        "verify_budgets": np.array([5, -1, -1], np.int32),
        "verify_coverage": np.array([0.7, 1.0, 1.0], np.float32),
    }
    got = _run(core, "BlockSelect", select, attributes)
    del select["summary_token"]
    want = block_select(**{**select, **attributes})
    differ = sum(int((g != w).sum()) for g, w in zip(got, want, strict=True))
    return float(differ), dict(zip(("selected_blocks", "selected_counts"), got, strict=True))


def _check_attention(core: ov.Core, inputs: Inputs, others: Inputs, sight: dict[str, Any]) -> float:
    everything = inputs | others
    attributes: dict[str, Any] = {**SIZES, "v_size": V_SIZE, "scale": K_SIZE**-0.5, **sight}
    tables = [everything[name] for name in TABLES if name in everything]
    packed = {"verify_tables": pack_tables(*tables)}
    first = {name: everything[name] for name in ("query", "key_cache", "value_cache", "attention")}
    last = {name: everything[name] for name in ("selected_blocks", "selected_counts", "sinks")}
    out = _run(core, "VerifyAttention", first | packed | last, attributes)[0]
    return _worst(out, verify_attention(*everything.values(), **attributes))


def _experts(rng: np.random.Generator, out: int, size: int, bits: int) -> list[NDArray[np.uint8]]:
    """Data, scales and zero points of one projection of `EXPERTS`, of 8 or 4 bits in groups of 32."""
    groups = 1 if bits == 8 else size // 32
    data = rng.integers(0, 256, (EXPERTS, out, size * bits // 8), dtype=np.uint8)
    zero_points = rng.integers(0, 1 << bits, (EXPERTS, out, groups), dtype=np.uint8)
    scales = rng.uniform(0.5, 1.5, zero_points.shape) / ((1 << bits) * size**0.5)
    return [data, scales.astype(np.float16).view(np.uint8), zero_points]


def _check_experts(core: ov.Core, bits: int) -> float:
    """ExpertBudget, then SparseMoE: largest error, or infinity where other experts are kept."""
    rng = np.random.default_rng(2)
    rows, hidden, inner = 5, 160, 96
    indices = np.stack([rng.permutation(EXPERTS)[:3] for _ in range(rows)]).astype(np.int32)
    weights = rng.dirichlet(np.ones(3), rows).astype(np.float32)
    limits = {
        "budgets": np.array([5], np.int32),
        "begins": np.array([0, 3, rows], np.int32),
        "past_lens": np.array([7, -1], np.int32),
    }
    attributes = {"experts": EXPERTS, "layer": 0}
    kept = _run(core, "ExpertBudget", {"indices": indices, "weights": weights} | limits, attributes)
    limited = np.arange(rows) < 3
    wanted = expert_budget(indices, weights, limited, budget=5, experts=EXPERTS)
    if not np.array_equal(kept[0], wanted[0]):
        return float("inf")
    x = rng.standard_normal((rows, hidden)).astype(np.float32)
    sizes = ((inner, hidden), (inner, hidden), (hidden, inner))
    parts = [_experts(rng, out, size, bits) for out, size in sizes]
    tensors = [x, *kept, *(tensor for part in parts for tensor in part)]
    output = _run(core, "SparseMoE", {str(i): tensor for i, tensor in enumerate(tensors)}, {})[0]
    values = [dequantise(d, s, z, size) for (d, s, z), (_, size) in zip(parts, sizes, strict=True)]
    expected, _ = sparse_moe(x, *wanted, *values)
    return max(_worst(output, expected), _worst(kept[1], wanted[1]))


def _rounds(row_bits: int) -> bool:
    """Whether the instruction set in use rounds rows to 8 bits."""
    return row_bits == 8 and loader.active_isa() in ISAS


def _mlp_weights(
    rng: np.random.Generator, channels: int, hidden: int, bits: int, down: bool
) -> list[NDArray[np.uint8]]:
    """Data, scales and zero points of one projection of GatedMLP, of 8 or 4 bits in groups of 32."""
    groups = 1 if bits == 8 else (channels if down else hidden) // 32
    values = rng.integers(0, 1 << bits, (channels, hidden), dtype=np.uint8)
    zero_points = rng.integers(0, 1 << bits, (groups, hidden) if down else (channels, groups), dtype=np.uint8)
    scales = f16_bytes(rng.uniform(0.5, 1.5, zero_points.shape) / ((1 << bits) * hidden**0.5))
    if down:
        return [(pack_columns_u8 if bits == 8 else pack_columns_u4)(values), scales, zero_points]
    return [values if bits == 8 else pack_rows_u4(values, groups), scales, zero_points]


def _check_mlp(core: ov.Core, bits: int, row_bits: int) -> float:
    """GatedMLP with a limit of channels and one row that takes all."""
    rng = np.random.default_rng(4)
    rows, channels, hidden, fmt = 5, 96, 160, f"u{bits}"
    parts = [_mlp_weights(rng, channels, hidden, bits, down) for down in (False, False, True)]
    x = rng.standard_normal((rows, hidden)).astype(np.float32)
    weights = np.array([1, 1, 0, 1, 1], np.float32)
    flat: list[NDArray[Any]] = [tensor for part in parts for tensor in part]
    tensors = [x, *flat, np.array([41], np.float32), weights]
    projections = ("gate", "up", "down")
    attributes = {f"{part}_format": fmt for part in projections} | {"row_bits": row_bits}
    output = _run(core, "GatedMLP", {str(i): tensor for i, tensor in enumerate(tensors)}, attributes)[0]
    values = [dequantise_mlp(d, s, z, fmt, hidden, i == 2) for i, (d, s, z) in enumerate(parts)]
    sizes = zip(projections, (hidden, hidden, channels), strict=True)
    byte_rows = {part: (fmt, 1 if bits == 8 else size // 32) for part, size in sizes}
    rounded = byte_rows if _rounds(row_bits) else None
    expected, _ = gated_mlp(x, *values, limit=41, row_weights=weights, byte_rows=rounded)
    return _worst(output, expected)


def _check_linear(core: ov.Core, bits: int, row_bits: int) -> float:
    """Linear, two layers of the same rows."""
    rng = np.random.default_rng(5)
    rows, inputs, sizes, fmt = 9, 320, (70, 33), f"u{bits}"
    groups = 1 if bits == 8 else inputs // 64
    panels = []
    for size in sizes:
        values = rng.integers(0, 1 << bits, (size, inputs), dtype=np.uint8)
        zero_points = rng.integers(0, 1 << bits, (size, groups), dtype=np.uint8)
        scales = rng.uniform(0.5, 1.5, (size, groups)) / ((1 << bits) * inputs**0.5)
        panels.append(pack_linear(values, scales.astype(np.float16), zero_points, fmt))
    tensors: Inputs = {"hidden": rng.standard_normal((rows, inputs)).astype(np.float32)}
    tensors["weights"] = np.concatenate(panels)
    attributes = {"format": fmt, "groups": groups, "sizes": list(sizes), "row_bits": row_bits}
    outputs = _run(core, "Linear", tensors, attributes)
    expected = linear(tensors["hidden"], tensors["weights"], sizes, fmt, groups, _rounds(row_bits))
    return max(_worst(output, want) for output, want in zip(outputs, expected, strict=True))


def _check_numbers(core: ov.Core, fmt: str, row_bits: int) -> float:
    """Linear with floating-point weights."""
    rng = np.random.default_rng(6)
    numbers = rng.standard_normal((70, 600)) / 600**0.5  # outputs are near 1, as errors are absolute
    weights = pack_linear(numbers.astype(np.float32), fmt=fmt)
    tensors: Inputs = {"hidden": rng.standard_normal((9, 600)).astype(np.float32), "weights": weights}
    output = _run(core, "Linear", tensors, {"format": fmt, "sizes": [70], "row_bits": row_bits})[0]
    expected = linear(tensors["hidden"], weights, [70], fmt, bf16_rows=row_bits == 16)
    return _worst(output, expected[0])


def _check_layers(core: ov.Core) -> float:
    """DecoderLayers: some steps of rows."""
    rng = np.random.default_rng(8)
    lines = [
        "input x:72 cos:24 sin:24 w",
        "n:72 = rms x w@0 size=24 eps=1e-05",
        "r:72 = rope n cos sin",
        "m:72 = layer_norm r w@0 size=72 eps=1e-05",
        "g:72 = silu_multiply m x",
        "y:72 = add g r",
        "p:72 = softmax y",
        "output y p",
    ]
    rows = {name: rng.standard_normal((9, size)) for name, size in (("x", 72), ("cos", 24), ("sin", 24))}
    inputs: Inputs = {name: values.astype(np.float32) for name, values in rows.items()}
    inputs["w"] = rng.uniform(0.5, 1.5, 72).astype(np.float32).view(np.uint8)
    program = "\n".join([VERSION, *lines])
    expected = decoder_layers(program, list(inputs.values()))
    got = _run(core, "DecoderLayers", inputs, {"program": program})
    return max(_worst(*pair) for pair in zip(got, expected, strict=True))


def _check_isa(core: ov.Core, isa: str) -> Iterator[CheckResult]:
    rng = np.random.default_rng(0)
    # A value in the middle between two integers may fall to either where product and sum round twice.
    yield CheckResult("CacheWrite u8", isa, _check_write(core), 1.0)
    yield CheckResult("DecoderLayers", isa, _check_layers(core), 1e-5)
    for precision in ("f32", "u8"):
        inputs = _inputs(rng, precision == "u8")
        selection: Inputs = {}
        # A mean key in the middle between two of its 16 numbers may fall to either; few do.
        yield CheckResult(f"KeySummary {precision}", isa, _check_summary(core, inputs), 1e-3)
        for rule in ("paper", "mass"):
            differ, selection = _check_select(core, inputs, rule)
            yield CheckResult(f"BlockSelect {precision} {rule}", isa, differ, 0.0)
        empty = np.zeros((KV_HEADS, 0), np.int32)
        dense = {"selected_blocks": empty, "selected_counts": empty}
        chain = {"sinks": np.zeros(0, np.float32), "verify_parents": np.zeros(0, np.int32)}
        # The second sequence is not under verification, so its entries are not read.
        tree = {
            "sinks": rng.standard_normal(KV_HEADS * GROUP).astype(np.float32),
            "verify_parents": np.array([-1, *[0] * 9, -1, 0, 0, 1, -1], np.int32),
        }
        cases: dict[str, tuple[Inputs, dict[str, Any]]] = {
            "dense": (dense | chain, {}),
            "selected": (selection | chain, {}),
            "tree": (dense | tree, {}),
            "window": (dense | chain, {"sliding_window": 33}),
            "block": (dense | chain, {"past_window": 29, "causal": False}),
        }
        for name, (others, sight) in cases.items():
            error = _check_attention(core, inputs, others, sight)
            # Products of integers take 16-bit queries and weights; u8 itself errs by a thousand times that.
            integer = precision == "u8" and isa.endswith(("amx", "vnni"))
            yield CheckResult(f"VerifyAttention {precision} {name}", isa, error, 3e-4 if integer else 1e-5)
    for bits in (8, 4):
        yield CheckResult(f"SparseMoE int{bits}", isa, _check_experts(core, bits), 1e-4)
        for row_bits in (16, 8):
            # A value in the middle between two integers of 8 bits may fall to either.
            name, tolerance = f"int{bits}, rows of {row_bits}", 2e-3 if _rounds(row_bits) else 2e-4
            yield CheckResult(f"GatedMLP {name}", isa, _check_mlp(core, bits, row_bits), tolerance)
            yield CheckResult(f"Linear {name}", isa, _check_linear(core, bits, row_bits), tolerance)
    for fmt, row_bits in (("f32", 32), ("f16", 32), ("bf16", 32), ("bf16", 16)):
        error = _check_numbers(core, fmt, row_bits)
        # 256 products are added up in order; each addition may round by 6e-8 of a sum near 1.
        yield CheckResult(f"Linear {fmt}, rows of {row_bits}", isa, error, 256 * 6e-8)


def self_check() -> list[CheckResult]:
    """Every operation, precision and instruction set of this processor; takes a second or two.

    Raises RuntimeError where the library does not load. Leaves the instruction set in use as it was.
    """
    core = ov.Core()
    loader.load(core)
    before = loader.active_isa()
    results = []
    try:
        for isa in loader.available_isas():
            loader.set_isa(isa)
            results += list(_check_isa(core, isa))
    finally:
        loader.set_isa(before)
    return results
