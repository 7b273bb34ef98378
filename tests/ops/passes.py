"""One pass over several sequences: their tables, rows and caches, as the inputs of the operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from ops.caches import BLOCK, as_tensor, cache_type, empty_cache, write_block

import ovspec_ops
from ovspec_ops.self_check import TABLES
from ovspec_ops.verify_attention import pack_tables


def random_parents(rng: np.random.Generator, rows: int) -> list[int]:
    """A draft tree, as `verify_parents` has it: every row follows an earlier one or the past (-1)."""
    return [int(rng.integers(-1, r)) for r in range(rows)]


@dataclass
class OpsPass:
    """`sequences` lists (tokens in the cache, rows of this pass, under verification)."""

    sequences: Sequence[tuple[int, int, bool]]
    kv_heads: int = 2
    group: int = 2
    k_size: int = 16
    v_size: int = 16
    fmt: str = "f32"
    seed: int = 0
    window: int = 0
    magnitude: float = 1.0
    keep: float | None = None  # share of blocks in random selections; None: dense
    sinks: bool = False
    tree: bool = False  # a random parent for every row; else a chain
    past_window: int = 0
    causal: bool = True
    inputs: dict[str, Any] = field(default_factory=dict)
    summarised: NDArray[np.int32] = field(init=False)  # `summarised_lens`: the tokens before the pass

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        spare = 3
        needed = [-(-(past + rows) // BLOCK) for past, rows, _ in self.sequences]
        blocks = sum(needed) + spare
        ids = rng.permutation(blocks)
        keys = empty_cache(self.key_format, blocks, self.kv_heads, self.k_size)
        values = empty_cache(self.value_format, blocks, self.kv_heads, self.v_size)
        tables: list[list[int]] = []
        for (past, rows, verified), count in zip(self.sequences, needed, strict=True):
            table = ids[: count + 1].tolist()  # one more than needed: a table may reach further
            ids = ids[count:]
            for b in range(count):
                tokens = min(BLOCK, past + rows - b * BLOCK)
                write_block(keys, self.key_format, table[b], self._tokens(rng, tokens, self.k_size))
                write_block(values, self.value_format, table[b], self._tokens(rng, tokens, self.v_size))
            tables.append(table if verified else [])
        rows = [r for _, r, _ in self.sequences]
        past = [past if verified and rows else -1 for past, rows, verified in self.sequences]
        self.summarised = np.array(past, np.int32)
        heads = self.kv_heads * self.group
        self.inputs = {
            "query": rng.standard_normal((sum(rows), heads * self.k_size)).astype(np.float32)
            * self.magnitude,
            "key_cache": keys,
            "value_cache": values,
            "attention": rng.standard_normal((sum(rows), heads * self.v_size)).astype(np.float32),
            "subsequence_begins": np.cumsum([0, *rows]).astype(np.int32),
            "verify_past_lens": np.array([p if v else -1 for p, _, v in self.sequences], np.int32),
            "verify_block_indices": np.array([b for t in tables for b in t], np.int32),
            "verify_block_indices_begins": np.cumsum([0, *map(len, tables)]).astype(np.int32),
        }
        self.inputs |= self._selection(rng)
        self.inputs["sinks"] = (rng.standard_normal(heads * self.sinks) * 2).astype(np.float32)
        parents = [random_parents(rng, r) for r in rows] if self.tree else []
        self.inputs["verify_parents"] = np.array([p for tree in parents for p in tree], np.int32)

    @property
    def key_format(self) -> str:
        return self.fmt

    @property
    def value_format(self) -> str:
        return "u8_token" if self.fmt == "u8_channel" else self.fmt  # values are always by token

    @property
    def scale(self) -> float:
        return self.k_size**-0.5

    @property
    def attributes(self) -> dict[str, Any]:
        return {
            "kv_heads": self.kv_heads,
            "k_size": self.k_size,
            "v_size": self.v_size,
            "scale": self.scale,
            "sliding_window": self.window,
            "past_window": self.past_window,
            "causal": self.causal,
        }

    def _tokens(self, rng: np.random.Generator, count: int, size: int) -> NDArray[np.float32]:
        offset = rng.uniform(-1, 1, (1, self.kv_heads, size)).astype(np.float32)
        return rng.standard_normal((count, self.kv_heads, size)).astype(np.float32) + offset

    def _selection(self, rng: np.random.Generator) -> dict[str, NDArray[np.int32]]:
        columns = self.inputs["verify_block_indices"].size
        if self.keep is None:
            empty = np.zeros((self.kv_heads, 0), np.int32)
            return {"selected_blocks": empty, "selected_counts": empty}
        blocks = np.full((self.kv_heads, columns), -1, np.int32)
        counts = np.full((self.kv_heads, len(self.sequences)), -1, np.int32)
        for s, (past, rows, verified) in enumerate(self.sequences):
            if not verified:
                continue
            total, own = -(-(past + rows) // BLOCK), past // BLOCK
            for h in range(self.kv_heads):
                kept = sorted({*np.flatnonzero(rng.random(own) < self.keep).tolist(), *range(own, total)})
                begin = self.inputs["verify_block_indices_begins"][s]
                blocks[h, begin : begin + len(kept)] = kept
                counts[h, s] = len(kept)
        return {"selected_blocks": blocks, "selected_counts": counts}

    @property
    def tables(self) -> NDArray[np.int32]:
        """`verify_tables`, as the inputs are now."""
        return pack_tables(*(self.inputs[name] for name in TABLES))

    def tensor(self, name: str) -> ov.Tensor:
        if name == "key_cache" or name == "value_cache":
            fmt = cache_type(self.fmt)
            return as_tensor(self.inputs[name], fmt if fmt == ov.Type.bf16 else None)
        return as_tensor(self.inputs[name])


def attention_tensors(case: OpsPass) -> dict[str, ov.Tensor]:
    """The inputs of VerifyAttention: the tables as one."""
    first = ("query", "key_cache", "value_cache", "attention")
    last = ("selected_blocks", "selected_counts", "sinks")
    return {
        **{name: case.tensor(name) for name in first},
        "verify_tables": as_tensor(case.tables),
        **{name: case.tensor(name) for name in last},
    }


def parameters(tensors: dict[str, ov.Tensor], dynamic: bool = True) -> list[ov.Node]:
    """A Parameter per tensor, of its type and rank; dimensions are dynamic unless told otherwise."""
    nodes = []
    for name, tensor in tensors.items():
        shape = ov.PartialShape([-1] * len(tensor.shape)) if dynamic else ov.PartialShape(list(tensor.shape))
        node = ov.op.Parameter(tensor.element_type, shape)
        node.output(0).set_names({name})
        nodes.append(node)
    return nodes


def evaluate(op_type: str, tensors: dict[str, ov.Tensor], attributes: dict[str, Any]) -> list[NDArray[Any]]:
    """Runs the operation by itself, without a plugin, on exactly these tensors."""
    node = ovspec_ops.create(op_type, parameters(tensors), attributes)
    outputs = [ov.Tensor(o.element_type, ov.Shape([0] * len(o.partial_shape))) for o in node.outputs()]
    assert node.evaluate(outputs, list(tensors.values()))
    return [output.data.copy() for output in outputs]


def attend(case: OpsPass) -> NDArray[np.float32]:
    """What VerifyAttention computes of a pass."""
    out: NDArray[np.float32] = evaluate("VerifyAttention", attention_tensors(case), case.attributes)[0]
    return out


def compile_op(
    op_type: str, tensors: dict[str, ov.Tensor], attributes: dict[str, Any], **properties: Any
) -> ov.CompiledModel:
    """The operation between Parameters and Results, compiled for the CPU plugin at f32."""
    nodes = parameters(tensors)
    node = ovspec_ops.create(op_type, nodes, attributes)
    core = ov.Core()
    ovspec_ops.load(core)
    model = ov.Model([ov.op.Result(o) for o in node.outputs()], nodes)
    return core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32", **properties})


def infer(compiled: ov.CompiledModel, tensors: dict[str, ov.Tensor]) -> list[NDArray[Any]]:
    request = compiled.create_infer_request()
    for name, tensor in tensors.items():
        request.set_tensor(name, tensor)
    request.infer()
    return [request.get_output_tensor(i).data.copy() for i in range(len(compiled.outputs))]
