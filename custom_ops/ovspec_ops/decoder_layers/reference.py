"""NumPy reference of DecoderLayers: a program, line by line, in f64 between the steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovspec_ops.block_select.reference import block_select
from ovspec_ops.cache_write.reference import cache_write
from ovspec_ops.decoder_layers.draft_reference import choose, embedding, runs, take
from ovspec_ops.gated_mlp.reference import activate, gated_mlp
from ovspec_ops.gated_mlp.reference import dequantise as dequantise_mlp
from ovspec_ops.key_summary.reference import key_summary
from ovspec_ops.linear.layout import packed_shape
from ovspec_ops.linear.reference import adapted, linear
from ovspec_ops.moe.reference import dequantise as dequantise_experts
from ovspec_ops.moe.reference import expert_budget, sparse_moe
from ovspec_ops.verify_attention.reference import softmax, verify_attention
from ovspec_ops.verify_attention.tables import unpack_tables

VERSION = "ovspec layers 1"

Array = NDArray[Any]
Settings = Mapping[str, str]
Widths = Sequence[int]
StepOf = Callable[[Sequence[Array], Settings, Widths], list[Array]]


def rms(operands: Sequence[Array], settings: Settings, widths: Widths) -> list[Array]:
    """x / sqrt(mean of x^2 + eps) * weights, for every `size` values of a row."""
    x, data = operands
    size = int(settings["size"])
    weights = data[: 4 * size].view(np.float32)
    parts = x.astype(np.float64).reshape(len(x), -1, size)
    root = np.sqrt((parts**2).mean(axis=-1, keepdims=True) + float(settings["eps"]))
    return [(parts / root * weights).reshape(x.shape)]


def products(operands: Sequence[Array], settings: Settings, widths: Widths) -> list[Array]:
    """Linear: the panels of all outputs lie one behind the other."""
    x, data, *adapters = operands
    fmt, groups = settings["format"], int(settings["groups"])
    shapes = [packed_shape(width, x.shape[1], groups, fmt) for width in widths]
    panels, size = sum(count for count, _ in shapes), shapes[0][1]
    packed = data[: panels * size].reshape(panels, size)
    found = linear(x.astype(np.float32), packed, widths, fmt, groups)
    if not adapters:
        return list(found)
    of_rows: Any = adapters[0]  # in place of a table of addresses the products of each row
    layers = [int(layer) for layer in settings["adapter_layers"].split(",")]
    return list(adapted(x.astype(np.float32), found, of_rows, layers))


def layer_norm(operands: Sequence[Array], settings: Settings, widths: Widths) -> list[Array]:
    """(x - mean) / sqrt(variance + eps) * weights, for every `size` values of a row."""
    x, data = operands
    parts = x.astype(np.float64).reshape(len(x), -1, int(settings["size"]))
    centred = (parts - parts.mean(axis=-1, keepdims=True)).reshape(x.shape)
    return rms([centred, data], settings, widths)


def rope(operands: Sequence[Array], settings: Settings, widths: Widths) -> list[Array]:
    """x * cos + turned x * sin, for every part of a row; `size` where cos and sin hold half a part."""
    x, *angles = operands
    cos, sin = (np.concatenate([part, part], axis=1) if "size" in settings else part for part in angles)
    parts = x.astype(np.float64).reshape(len(x), -1, cos.shape[1])
    first, second = np.split(parts, 2, axis=-1)
    turned = np.concatenate([-second, first], axis=-1)
    return [(parts * cos[:, None] + turned * sin[:, None]).reshape(x.shape)]


def rope_pairs(operands: Sequence[Array], settings: Settings, widths: Widths) -> list[Array]:
    """The same where two neighbours turn together."""
    x, cos, sin = operands
    parts = x.astype(np.float64).reshape(len(x), -1, cos.shape[1])
    turned = np.stack([-parts[..., 1::2], parts[..., ::2]], axis=-1).reshape(parts.shape)
    return [(parts * cos[:, None] + turned * sin[:, None]).reshape(x.shape)]


def write(operands: Sequence[Array], settings: Settings, widths: Widths) -> list[Array]:
    """CacheWrite, in place."""
    key, value, key_cache, value_cache, slots = operands
    rows = key.astype(np.float32), value.astype(np.float32)
    key_cache[...], value_cache[...] = cache_write(rows[0], rows[1], key_cache, value_cache, slots)
    return [np.zeros((len(key), 0))]


def attention(operands: Sequence[Array], settings: Settings, widths: Widths) -> list[Array]:
    """VerifyAttention."""
    query, keys, values, _, tables, *selection = operands
    heads: dict[str, Any] = {
        name: int(settings[name]) for name in ("kv_heads", "k_size", "v_size", "sliding_window")
    }
    heads["past_window"] = int(settings.get("past_window", 0))
    heads["causal"] = settings.get("causal", "1") != "0"
    nothing = np.zeros((len(query), widths[0]), np.float32)
    begins, past, block_begins, parents, blocks = unpack_tables(tables)
    none = np.zeros((heads["kv_heads"], 0), np.int32)
    blocks_read, counts, sinks = selection or (none, none, np.zeros(0, np.float32))
    tables_ = (begins, past, blocks, block_begins, blocks_read, counts, sinks, parents)
    rows, scale = query.astype(np.float32), float(settings["scale"])
    return [verify_attention(rows, keys, values, nothing, *tables_, scale=scale, **heads)]


def _second(operands: Sequence[Array]) -> Array:
    """Rows, or weights that are the same for all rows."""
    x, other = operands
    return other[: 4 * x.shape[1]].view(np.float32) if other.dtype == np.uint8 else other


def add(operands: Sequence[Array], settings: Settings, widths: Widths) -> list[Array]:
    """a + b."""
    return [operands[0].astype(np.float64) + _second(operands)]


def multiply(operands: Sequence[Array], settings: Settings, widths: Widths) -> list[Array]:
    """a * b."""
    return [operands[0].astype(np.float64) * _second(operands)]


def scale(operands: Sequence[Array], settings: Settings, widths: Widths) -> list[Array]:
    """x times the one value of another's row."""
    return [operands[0].astype(np.float64) * operands[1]]


def of_values(
    function: Callable[[Array], Array],
) -> Callable[[Sequence[Array], Settings, Widths], list[Array]]:
    """A step of rows whose function needs nothing else."""
    return lambda operands, settings, widths: [function(operands[0].astype(np.float64))]


def normalize(operands: Sequence[Array], settings: Settings, widths: Widths) -> list[Array]:
    """x / its sum over a row."""
    x = operands[0].astype(np.float64)
    return [x / x.sum(axis=1, keepdims=True)]


def top_k(operands: Sequence[Array], settings: Settings, widths: Widths) -> list[Array]:
    """The largest values of a row in descending order, and their places; the first among equals."""
    x = operands[0].astype(np.float64)
    places = np.argsort(-x, axis=1, kind="stable")[:, : widths[0]]
    return [np.take_along_axis(x, places, 1), places.astype(np.int32)]


def cut(operands: Sequence[Array], settings: Settings, widths: Widths) -> list[Array]:
    """Of every `size` values those from `first` on, for one output after the other."""
    x, first = operands[0], int(settings["first"])
    parts, found = x.reshape(len(x), -1, int(settings["size"])), list[Array]()
    for width in widths:
        count = width // parts.shape[1]
        found.append(parts[..., first : first + count].reshape(len(x), width))
        first += count
    return found


def concat(operands: Sequence[Array], settings: Settings, widths: Widths) -> list[Array]:
    """`parts` parts, each of a part of every operand."""
    parts = [x.reshape(len(x), int(settings["parts"]), -1) for x in operands]
    return [np.concatenate(parts, axis=-1).reshape(len(operands[0]), -1)]


def summarise_keys(operands: Sequence[Array], settings: Settings, widths: Widths) -> list[Array]:
    """KeySummary, in place."""
    keys, _, summary, *lengths = operands
    summary[...] = key_summary(keys, summary, *lengths, k_size=int(settings["k_size"]))
    return [np.zeros(1, np.int32)]


def stack(operands: Sequence[Array], settings: Settings, widths: Widths) -> list[Array]:
    """Tables of one shape, one behind the other."""
    return [np.stack(operands)]


def choose_blocks(operands: Sequence[Array], settings: Settings, widths: Widths) -> list[Array]:
    """BlockSelect."""
    query, summary, _, *limits = operands
    whole = ("kv_heads", "k_size", "sink_blocks", "local_blocks")
    attributes: dict[str, Any] = {name: int(settings[name]) for name in whole}
    scale_ = float(settings["scale"])
    found = block_select(
        query.astype(np.float32), summary, *limits, rule=settings["rule"], scale=scale_, **attributes
    )
    return list(found)


def feed_forward(operands: Sequence[Array], settings: Settings, widths: Widths) -> list[Array]:
    """GatedMLP with rows of 16 bits."""
    hidden, *weights, limits, row_weights = operands
    size, matrices = hidden.shape[1], list[Array]()
    for first, name in enumerate(("gate", "up", "down")):
        data, scales, zeros = weights[3 * first : 3 * first + 3]
        matrices.append(dequantise_mlp(data, scales, zeros, settings[f"{name}_format"], size, name == "down"))
    limit = int(limits[int(settings["layer"])]) if limits.size else -1
    of_rows = row_weights if row_weights.size else None
    rows = hidden.astype(np.float32)
    y, read = gated_mlp(
        rows,
        matrices[0],
        matrices[1],
        matrices[2],
        activation=settings["activation"],
        limit=limit,
        row_weights=of_rows,
    )
    return [y, np.array([read], np.int32)]


def limit_experts(operands: Sequence[Array], settings: Settings, widths: Widths) -> list[Array]:
    """ExpertBudget."""
    indices, weights, budgets, begins, past = operands
    limited = np.ones(len(indices), bool) if past.size == 0 else np.repeat(past >= 0, np.diff(begins))
    budget, experts = int(budgets[int(settings["layer"])]), int(settings["experts"])
    return list(expert_budget(indices, weights.astype(np.float32), limited, budget=budget, experts=experts))


def experts(operands: Sequence[Array], settings: Settings, widths: Widths) -> list[Array]:
    """SparseMoE."""
    hidden, indices, weights, *tensors = operands
    size, inner = hidden.shape[1], tensors[0].shape[1]
    gate, up, down = (
        dequantise_experts(tensors[3 * i], tensors[3 * i + 1], tensors[3 * i + 2], inputs)
        for i, inputs in enumerate((size, size, inner))
    )
    biases = tuple(tensors[9:]) or None
    rows, shares = hidden.astype(np.float32), weights.astype(np.float32)
    limit, alpha = float(settings["limit"]), float(settings["alpha"])
    y, read = sparse_moe(rows, indices, shares, gate, up, down, biases=biases, limit=limit, alpha=alpha)
    return [y, np.array([read], np.int32)]


def silu_multiply(operands: Sequence[Array], settings: Settings, widths: Widths) -> list[Array]:
    """silu(a) * b."""
    return [activate(operands[0].astype(np.float64), "silu") * operands[1]]


STEPS: dict[str, StepOf] = {
    "rms": rms,
    "layer_norm": layer_norm,
    "linear": products,
    "rope": rope,
    "rope_pairs": rope_pairs,
    "cache_write": write,
    "key_summary": summarise_keys,
    "block_select": choose_blocks,
    "stack": stack,
    "attention": attention,
    "add": add,
    "multiply": multiply,
    "scale": scale,
    **{name: of_values(partial(activate, activation=name)) for name in ("silu", "gelu_tanh", "gelu_erf")},
    "relu": of_values(lambda x: np.maximum(x, 0)),
    "sigmoid": of_values(lambda x: np.exp(-np.logaddexp(0, -x))),
    "tanh": of_values(np.tanh),
    "silu_multiply": silu_multiply,
    "gated_mlp": feed_forward,
    "softmax": of_values(softmax),
    "top_k": top_k,
    "normalize": normalize,
    "expert_budget": limit_experts,
    "experts": experts,
    "slice": cut,
    "concat": concat,
    "embedding": embedding,
    "take": take,
    "choose": choose,
    "either": lambda operands, settings, widths: [operands[0]],
}


def decoder_layers(program: str, inputs: Sequence[Any]) -> list[Array]:
    """The outputs of a program, f64 `[rows, width]` each; caches among the inputs are written in place.

    Args:
        inputs: in the order of the program; in place of a table of addresses a list of caches.
    """
    version, head, *steps, tail = program.splitlines()
    assert version == VERSION and head.startswith("input ") and tail.startswith("output ")
    words = [word.partition(":") for word in head.split()[1:]]
    given = {name: array for (name, _, _), array in zip(words, inputs, strict=True)}
    rows = [name for name, colon, _ in words if colon]
    known = runs(given, steps, rows, lambda own: _run(own, steps))
    return [known[name] for name in tail.split()[1:]]


def _run(given: Mapping[str, Any], steps: Sequence[str]) -> dict[str, Any]:
    """The inputs, and what the steps make of them."""
    known = dict(given)
    for line in steps:
        left, _, right = line.partition(" = ")
        name, *words = right.split()
        settings = dict(word.split("=") for word in words if "=" in word)
        operands = [_operand(known, word) for word in words if "=" not in word]
        outputs = [word.split(":") for word in left.split()]
        forms = [form for _, form in outputs]
        widths = [0 if "[" in form else int(form) for form in forms]
        is_computed = "if" not in settings or _number(known, settings["if"]) != 0
        compute = STEPS[name] if is_computed else partial(leave_out, name, forms)
        found = compute(operands, settings, widths)
        known |= {rows: array for (rows, _), array in zip(outputs, found, strict=True)}
    return known


def leave_out(
    name: str, forms: Sequence[str], operands: Sequence[Array], settings: Settings, widths: Widths
) -> list[Array]:
    """What a step is that its setting `if` leaves out: rows are not written, tables say that nothing is read.

    `forms`: of its outputs.
    """
    if name == "either":
        return [operands[1]]
    if name == "block_select":
        *others, budgets, coverage = operands
        return choose_blocks([*others, np.full_like(budgets, -1), coverage], settings, widths)
    rows = [np.full((len(operands[0]), width), np.nan) for width in widths]
    dims = [re.findall(r"[0-9]+|\?", form.partition("[")[2]) for form in forms]
    tables = [np.zeros([0 if d == "?" else int(d) for d in of], np.int32) for of in dims]
    return [table if "[" in form else x for form, x, table in zip(forms, rows, tables, strict=True)]


def _number(known: Mapping[str, Any], word: str) -> int:
    table, _, place = word.partition("#")
    return int(known[table][int(place)])


def _operand(known: Mapping[str, Any], word: str) -> Array:
    name, _, first = word.partition("@")
    if name == "none":
        return np.zeros(0, np.uint8)
    table, _, entry = word.partition("#")
    found: Array = known[table][int(entry)] if entry else known[name]
    return found[int(first) :] if first else found
