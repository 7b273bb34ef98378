"""Graphs with the CPU plugin's own PagedAttention node, alone and with VerifyAttention behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops
from openvino.op import _PagedAttentionExtension
from ops.caches import BLOCK

import ovspec_ops
from ovspec_ops.key_summary.reference import summary_bytes
from ovspec_ops.verify_attention import pack_tables

I32 = ov.Type.i32


def parameter(name: str, element_type: ov.Type, shape: list[int]) -> ov.Node:
    node = ov.op.Parameter(element_type, ov.PartialShape(shape))
    node.output(0).set_names({name})
    node.set_friendly_name(name)
    return node


def _stock_node(
    params: dict[str, ov.Node],
    kv_heads: int,
    k_size: int,
    v_size: int,
    window: int,
    sinks: NDArray[np.float32] | None,
) -> ov.Node:
    def constant(value: Any, dtype: Any) -> ov.Node:
        return ops.constant(np.array(value, dtype))

    none_i32, none_f32 = constant([], np.int32), constant([], np.float32)
    tail = [
        constant(k_size**-0.5, np.float32), constant(window, np.int32), none_f32, params["max_context_len"],
        none_i32, none_i32, none_i32, none_f32, none_f32, constant(0, np.int32), constant(0, np.int32),
        ops.constant(np.zeros((0, 0, 0, 0), np.float32) if sinks is None else sinks.reshape(1, -1, 1, 1)),
        constant(0, np.int32), none_i32, none_i32, none_i32,
        none_i32, constant([], np.uint8), none_i32,
    ]  # fmt: skip
    names = ["query", "key", "value", "key_cache.0", "value_cache.0", "past_lens", "subsequence_begins",
             "block_indices", "block_indices_begins"]  # fmt: skip
    node = _PagedAttentionExtension([n.output(0) for n in [*(params[name] for name in names), *tail]])
    info = node.get_rt_info()
    info["num_k_heads"], info["k_head_size"] = kv_heads, k_size
    info["num_v_heads"], info["v_head_size"] = kv_heads, v_size
    return node


def _parameters(heads: int, kv_heads: int, k_size: int, v_size: int) -> dict[str, ov.Node]:
    f32, any_type = ov.Type.f32, ov.Type.dynamic
    nodes = [
        parameter("query", f32, [-1, heads * k_size]),
        parameter("key", f32, [-1, kv_heads * k_size]),
        parameter("value", f32, [-1, kv_heads * v_size]),
        parameter("key_cache.0", any_type, [-1] * 4),
        parameter("value_cache.0", any_type, [-1] * 4),
        parameter("max_context_len", I32, []),
        *(parameter(n, I32, [-1]) for n in
          ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")),
    ]  # fmt: skip
    return {node.get_friendly_name(): node for node in nodes}


def stock_model(
    heads: int,
    kv_heads: int,
    k_size: int,
    v_size: int,
    window: int = 0,
    sinks: NDArray[np.float32] | None = None,
) -> ov.Model:
    """PagedAttention by itself: the reference implementation of the plugin; `sinks` `[heads]`."""
    params = _parameters(heads, kv_heads, k_size, v_size)
    node = _stock_node(params, kv_heads, k_size, v_size, window, sinks)
    return ov.Model([ov.op.Result(node.output(0))], list(params.values()))


def combined_model(
    heads: int,
    kv_heads: int,
    k_size: int,
    v_size: int,
    window: int = 0,
    sinks: NDArray[np.float32] | None = None,
    selective: bool = False,
) -> ov.Model:
    """The stock node writes the cache, VerifyAttention reads it; `selective` adds the other two."""
    params = _parameters(heads, kv_heads, k_size, v_size)
    stock = _stock_node(params, kv_heads, k_size, v_size, window, sinks)
    sizes = {"kv_heads": kv_heads, "k_size": k_size}
    if selective:
        summary = [-1, kv_heads, summary_bytes(k_size)]
        params["key_summary.0"] = parameter("key_summary.0", ov.Type.u8, summary)
        params |= {
            name: parameter(name, I32, [-1])
            for name in ("verify_tables", "written_tables", "summarised_lens", "verify_budgets")
        }
        lengths = [params["written_tables"], params["summarised_lens"]]
        written = [params["key_cache.0"], stock.output(0), params["key_summary.0"], *lengths]
        token = ovspec_ops.create("KeySummary", written, sizes)
        chosen = ovspec_ops.create(
            "BlockSelect",
            [
                params["query"],
                params["key_summary.0"],
                token,
                params["verify_tables"],
                params["verify_budgets"],
                ops.constant(np.ones(3, np.float32)),  # full coverage
            ],
            sizes,
        )
        selection = [chosen.output(0), chosen.output(1)]
    else:
        selection = [ops.constant(np.zeros((kv_heads, 0), np.int32)).output(0)] * 2
        params["verify_tables"] = parameter("verify_tables", I32, [-1])
    logits = ops.constant(np.zeros(0, np.float32) if sinks is None else sinks)
    verify = ovspec_ops.create(
        "VerifyAttention",
        [params["query"], params["key_cache.0"], params["value_cache.0"], stock.output(0),
         params["verify_tables"], *selection, logits],
        {**sizes, "v_size": v_size, "scale": k_size**-0.5, "sliding_window": window},
    )  # fmt: skip
    outputs = [verify.output(0), *selection] if selective else [verify.output(0)]
    return ov.Model([ov.op.Result(o) for o in outputs], list(params.values()))


class StockRunner:
    """A compiled model with caches of its own, as the engine holds them."""

    def __init__(self, model: ov.Model, blocks: int, **properties: Any) -> None:
        core = ov.Core()
        ovspec_ops.load(core)
        self._open(
            core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32", **properties}), blocks
        )

    def another(self) -> StockRunner:
        """Another request of the same compiled model, with caches of its own."""
        runner = StockRunner.__new__(StockRunner)
        runner._open(self.compiled, self.blocks)
        return runner

    def _open(self, compiled: ov.CompiledModel, blocks: int) -> None:
        self.compiled, self.blocks = compiled, blocks
        self.request = self.compiled.create_infer_request()
        self.caches: dict[str, ov.Tensor] = {}
        self.names = {port.any_name for port in self.compiled.inputs}
        for port in self.compiled.inputs:
            if "cache" in port.any_name or "summary" in port.any_name:
                shape = [blocks] + [d.get_length() for d in list(port.partial_shape)[1:]]
                tensor = ov.Tensor(port.element_type, ov.Shape(shape))
                tensor.data.view(np.uint8)[...] = 0xFF  # NaN in every float type
                self.caches[port.any_name] = tensor
                self.request.set_tensor(port, tensor)

    def __call__(self, **inputs: NDArray[Any]) -> list[NDArray[Any]]:
        for name, value in inputs.items():
            if name in self.names:
                self.request.set_tensor(name, ov.Tensor(np.array(value, order="C")))
        self.request.infer()
        return [self.request.get_output_tensor(i).data.copy() for i in range(len(self.compiled.outputs))]


def table_inputs(
    past: list[int], rows: list[int], tables: list[list[int]], verified: list[bool]
) -> tuple[dict[str, NDArray[np.int32]], dict[str, NDArray[np.int32]]]:
    """Inputs of one pass: (stock alone, whole tables; combined graph, tail tables for verified sequences)."""

    def flat(lists: list[list[int]]) -> NDArray[np.int32]:
        return np.array([b for t in lists for b in t], np.int32)

    def begins(lists: list[list[int]]) -> NDArray[np.int32]:
        return np.cumsum([0, *map(len, lists)]).astype(np.int32)

    used = [t[: -(-(p + r) // BLOCK)] for p, r, t in zip(past, rows, tables, strict=True)]
    subsequences = np.cumsum([0, *rows]).astype(np.int32)
    whole = {
        "past_lens": np.array(past, np.int32), "subsequence_begins": subsequences,
        "block_indices": flat(used), "block_indices_begins": begins(used),
        "max_context_len": np.array(max(p + r for p, r in zip(past, rows, strict=True)), np.int32),
    }  # fmt: skip
    first = [p // BLOCK if v else 0 for p, v in zip(past, verified, strict=True)]
    tails = [t[f:] for t, f in zip(used, first, strict=True)]
    tail_past = [p - f * BLOCK for p, f in zip(past, first, strict=True)]
    full = [t if v else [] for t, v in zip(used, verified, strict=True)]
    combined = {
        "past_lens": np.array(tail_past, np.int32), "subsequence_begins": subsequences,
        "block_indices": flat(tails), "block_indices_begins": begins(tails),
        "max_context_len": np.array(max(p + r for p, r in zip(tail_past, rows, strict=True)), np.int32),
        "verify_past_lens": np.array([p if v else -1 for p, v in zip(past, verified, strict=True)], np.int32),
        "verify_block_indices": flat(full), "verify_block_indices_begins": begins(full),
    }  # fmt: skip
    names = ("subsequence_begins", "verify_past_lens", "verify_block_indices", "verify_block_indices_begins")
    combined["verify_tables"] = pack_tables(*(combined[name] for name in names))
    # Of all sequences, those that are not verified too.
    names = ("subsequence_begins", "past_lens", "block_indices", "block_indices_begins")
    combined["written_tables"] = pack_tables(*(combined[name] for name in names))
    combined["summarised_lens"] = combined["past_lens"]
    places = [(np.array(t), np.arange(p, p + r)) for p, r, t in zip(past, rows, used, strict=True)]
    slots = [table[at // BLOCK] * BLOCK + at % BLOCK for table, at in places]
    combined["slot_mapping"] = np.concatenate(slots).astype(np.int32)
    return whole, combined
