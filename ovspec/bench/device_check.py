"""Every pattern of paged attention that ovspec uses on a device, compared with NumPy, and its time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops

from ovspec.cache.cache import KVCache
from ovspec.cache.cache_memory import blocks_on
from ovspec.devices.devices import is_gpu, masks_trees, openvino_core
from ovspec.devices.properties import with_defaults
from ovspec.graphs.compile import block_size_of, cache_tensors, compile_paged
from ovspec.passes.tables import seen_rows
from ovspec.stock.gpu_rows import padded_masks
from ovspec_models.shapes import get_shape
from ovspec_models.synthetic import build_model
from ovspec_transforms import QQ_BIAS, QQ_BIAS_BEGINS, paged_layers, to_paged, tree_mask

_HEADS, _KV_HEADS, _SIZE, _VOCABULARY = 4, 2, 64, 256
#: Inference and cache precision, with the largest error that passes, by the largest value. A block that is
#: left out is 0.2 or more. On CPUs, bf16 came to 4e-3 and u8 caches to 1.5e-2. In f32 the GPU plugin takes
#: OpenCL's native exponential for softmax, whose accuracy each runtime chooses: up to 2.8e-4 was seen.
PRECISIONS = (("f32", "f32", 2**-10), ("f16", "f16", 1e-2), ("f16", "u8", 3e-2))
_BLOCKS, _REPEAT, _ROWS = 1024, 10, 4

Floats = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class DeviceCheck:
    """One pattern in one pair of precisions; `failure`: the device's error message."""

    pattern: str
    inference: str
    cache: str
    error: float
    tolerance: float
    failure: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the device computes it as NumPy does; a NaN never does."""
        return self.failure is None and bool(self.error <= self.tolerance)


@dataclass(slots=True)
class _Text:
    """A sequence: the physical blocks it may use, keys and values of its tokens."""

    table: list[int]
    keys: Floats = field(default_factory=lambda: np.zeros((0, _KV_HEADS, _SIZE)))
    values: Floats = field(default_factory=lambda: np.zeros((0, _KV_HEADS, _SIZE)))


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows of a text behind `past` tokens, as a sequence of their own that reads some of its blocks.

    `parents`: as of `Rows`, of a tree; empty for a chain.
    """

    text: _Text
    past: int
    rows: int
    kept: list[int]
    parents: tuple[int, ...] = ()


class _Layer:
    """A model of one layer on a device, whose queries, keys, values and attention are outputs."""

    def __init__(self, device: str, inference: str, cache: str, masks: bool = False) -> None:
        shape = replace(
            get_shape("qwen3-0.6b", layers=1),
            hidden_size=_SIZE,
            intermediate_size=128,
            num_attention_heads=_HEADS,
            num_key_value_heads=_KV_HEADS,
            head_dim=_SIZE,
            vocab_size=_VOCABULARY,
        )
        model = build_model(shape)
        to_paged(model)
        if masks:
            tree_mask(model)
        node = paged_layers(model)[0].node
        sources = [*(node.input_value(position) for position in range(3)), node.output(0)]
        results = [ops.result(ops.convert(source, "f32")) for source in sources]
        for result, name in zip(results, "qkvo", strict=True):
            result.output(0).set_names({name})
        model.add_results(results)
        for result in model.get_results():
            if result not in results and "logits" in result.output(0).get_names():
                model.remove_result(result)
        asked = {"INFERENCE_PRECISION_HINT": inference, "KV_CACHE_PRECISION": cache}
        settings = with_defaults(asked, device)
        compiled = compile_paged(openvino_core(), model, device, settings)
        self._request = compiled.create_infer_request()
        caches = cache_tensors(compiled)
        self.block_size = block_size_of(caches)
        KVCache(self._request, caches, blocks_on(device)).ensure(_BLOCKS)
        self._names = {port.get_any_name() for port in compiled.inputs} - {spec.name for spec in caches}
        self._rng, self._device = np.random.default_rng(0), device

    def run(self, pieces: list[_Piece]) -> list[Floats]:
        """Run the pieces in one pass: per piece q, k, v and o, each `[rows, heads, size]`."""
        self.infer(pieces)
        seen = [np.array(self._request.get_tensor(name).data) for name in "qkvo"]
        cuts = np.cumsum([piece.rows for piece in pieces])[:-1]
        parts = [np.split(one.reshape(one.shape[0], -1, _SIZE), cuts) for one in seen]
        return [list(piece) for piece in zip(*parts, strict=True)]  # type: ignore[misc]

    def infer(self, pieces: list[_Piece]) -> float:
        """Run the pieces; milliseconds."""
        size = self.block_size
        dropped = [size * (-(-(one.past + one.rows) // size) - len(one.kept)) for one in pieces]
        tables = [[one.text.table[block] for block in one.kept] for one in pieces]
        past = [one.past - less for one, less in zip(pieces, dropped, strict=True)]
        rows = [one.rows for one in pieces]
        positions = [np.arange(one.past, one.past + one.rows) for one in pieces]
        inputs: dict[str, NDArray[np.generic]] = {
            "input_ids": self._rng.integers(0, _VOCABULARY, sum(rows)),
            "position_ids": np.concatenate(positions),
            "past_lens": np.array(past, np.int32),
            "subsequence_begins": np.cumsum([0, *rows]).astype(np.int32),
            "block_indices": np.concatenate(tables).astype(np.int32),
            "block_indices_begins": np.cumsum([0, *map(len, tables)]).astype(np.int32),
            "max_context_len": np.array(max(map(sum, zip(past, rows, strict=True))), np.int32),
        }
        if QQ_BIAS in self._names:
            inputs |= self._masks(pieces)
        for name in self._names:
            self._request.set_tensor(name, ov.Tensor(inputs[name]))
        started = perf_counter()
        self._request.infer()
        return 1e3 * (perf_counter() - started)

    def _masks(self, pieces: list[_Piece]) -> dict[str, NDArray[np.generic]]:
        masks = [seen_rows(piece.parents).reshape(-1) for piece in pieces]
        ends = np.cumsum(list(map(len, masks)))
        begins: NDArray[np.generic] = np.array([0, *ends] if ends[-1] else [], np.int32)
        joined: NDArray[np.generic] = np.concatenate(masks)
        if is_gpu(self._device):
            joined, begins = padded_masks(joined, begins, len(pieces))
        return {QQ_BIAS: joined, QQ_BIAS_BEGINS: begins}


def check_device(device: str) -> Iterator[DeviceCheck]:
    """Compute every pattern in every pair of precisions; what the device refuses is a failure."""
    for inference, cache, tolerance in PRECISIONS:
        try:
            layer = _Layer(device, inference, cache)
            for pattern, error in _errors(layer):
                yield DeviceCheck(pattern, inference, cache, error, tolerance)
            if masks_trees(device):
                error = _error_of_trees(_Layer(device, inference, cache, masks=True))
                yield DeviceCheck("trees of two sequences", inference, cache, error, tolerance)
        except (RuntimeError, ValueError) as error:
            yield DeviceCheck("all that follow", inference, cache, float("nan"), tolerance, str(error))


def time_device(device: str) -> list[dict[str, float | int]]:
    """Medians of one layer with four rows behind a context: stock's way, and those of ovspec."""
    layer, found = _Layer(device, "f16", "f16"), []
    for context in (1024, 8192):
        text = _Text(list(range(-(-(context + _ROWS) // layer.block_size))))
        whole = list(range(len(text.table)))
        few = [*whole[:4], *whole[-12:]]
        ways = {
            "one sequence": [_Piece(text, context, _ROWS, whole)],
            "a sequence per row": _apart(text, context, [whole] * _ROWS),
            "a list of 16 blocks": [_Piece(text, context, _ROWS, few)],
            "a list of 16 blocks per row": _apart(text, context, [few] * _ROWS),
        }
        times = {name: [layer.infer(pieces) for _ in range(2 + _REPEAT)][2:] for name, pieces in ways.items()}
        found.append({"context": context, **{name: median(some) for name, some in times.items()}})
    return found


def _errors(layer: _Layer) -> Iterator[tuple[str, float]]:
    size = layer.block_size
    a, b = _Text([3, 9, 1, 7, 20]), _Text([5, 2, 11])
    long, short = 4 * size + size // 2, 2 * size + 3
    every, all_b = [0, 1, 2, 3, 4], [0, 1, 2]
    for text, length, kept in ((a, long, every), (b, short, all_b)):
        yield f"prompt of {length}", _largest_error(layer, [_Piece(text, 0, length, kept)])
    last = size // 2 - 2  # rows that fit into the last block
    patterns = {
        "one row": [_Piece(a, long, 1, every)],
        "rows of two sequences": [_Piece(a, long, last, every), _Piece(b, short, 3, all_b)],
        "rows beside a prompt": [_Piece(_Text([30, 31]), 0, size + 1, [0, 1]), _Piece(a, long, 2, every)],
        "blocks left out": [_Piece(a, long, last, [0, 2, 4]), _Piece(b, short, 3, [0, 2])],
        "a sequence per row": _apart(a, long, [every] * last),
        "a list per row": _apart(a, long, [[0, 1 + row % 3, 4] for row in range(last)]),
        "behind a rollback": [_Piece(a, long - 3, 3, every)],
    }
    for name, pieces in patterns.items():
        yield name, _largest_error(layer, pieces)


def _error_of_trees(layer: _Layer) -> float:
    size = layer.block_size
    texts = (_Text([3, 9, 1]), 2 * size - 4, (-1, 0, 0, 1, 2, -1)), (_Text([5, 2]), size + 3, (-1, 0, 0))
    _largest_error(layer, [_Piece(text, 0, past, list(range(-(-past // size)))) for text, past, _ in texts])
    pieces = [_Piece(text, past, len(tree), list(range(len(text.table))), tree) for text, past, tree in texts]
    return _largest_error(layer, pieces)


def _apart(text: _Text, past: int, lists: list[list[int]]) -> list[_Piece]:
    return [_Piece(text, past + row, 1, kept) for row, kept in enumerate(lists)]


def _largest_error(layer: _Layer, pieces: list[_Piece]) -> float:
    """The largest difference from NumPy's attention of the device's own rows, by the largest value."""
    seen = layer.run(pieces)
    for piece, (_, keys, values, _) in zip(pieces, seen, strict=True):  # all are written before any is read
        text = piece.text
        text.keys = np.concatenate([text.keys[: piece.past], keys])
        text.values = np.concatenate([text.values[: piece.past], values])
    errors = []
    for piece, (query, _, _, out) in zip(pieces, seen, strict=True):
        places = [np.arange(block * layer.block_size, (block + 1) * layer.block_size) for block in piece.kept]
        for row in range(piece.rows):
            read = np.concatenate(places)
            read = read[read <= piece.past + row]
            if piece.parents:
                path = piece.past + np.flatnonzero(seen_rows(piece.parents)[row])
                read = read[(read < piece.past) | np.isin(read, path)]
            errors.append(np.abs(_attend(query[row], piece.text, read) - out[row]).max())
    largest = max(np.abs(piece.text.values).max() for piece in pieces)
    return float(np.max(errors) / largest)


def _attend(query: Floats, text: _Text, read: NDArray[np.integer]) -> Floats:
    """Attention of one row over some tokens, `[heads, size]`, in f64."""
    grouped = query.astype(np.float64).reshape(_KV_HEADS, -1, _SIZE)
    scores = np.einsum("hgd,thd->hgt", grouped, text.keys[read]) * _SIZE**-0.5
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out: Floats = np.einsum("hgt,thd->hgd", weights, text.values[read]).reshape(_HEADS, _SIZE)
    return out
