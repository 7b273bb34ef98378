"""`ovspec eval selection`: what a rule of selection keeps of the attention, layer by layer, on real text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from rich.table import Table

from ovspec.cache.cache import CachedSequence
from ovspec.engine.routing import sparse_attention
from ovspec.eval.divergence import Decision, decide
from ovspec.eval.in_force import SelectionInForce, verify_in_force
from ovspec.eval.prompts import Prompt
from ovspec.eval.tables import table_of
from ovspec.generation.inputs import encode, read_tokenizer
from ovspec.passes.prompt_pieces import DEFAULT_MAX_NUM_BATCHED_TOKENS
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner
from ovspec_models import ModelInfo
from ovspec_models.folder.sparse_verify import SparseVerify
from ovspec_ops.common.cache_layout import decode_block
from ovspec_transforms import SELECTED_BLOCKS, SELECTING_QUERIES

Masses = NDArray[np.float64]


def exact_masses(query: NDArray[np.float32], keys: NDArray[np.float64], block_size: int) -> Masses:
    """Share of the attention to the past that each block gets, mean over the queries of a KV head.

    Args:
        query: f32 `[rows, kv_heads, group, k_size]`, with the scale of attention.
        keys: f64 `[kv_heads, past, k_size]`.

    Returns:
        f64 `[rows, kv_heads, blocks]`.
    """
    scores = np.einsum("rhgd,hpd->rhgp", query.astype(np.float64), keys)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares = (weights / weights.sum(axis=-1, keepdims=True)).mean(axis=2)
    return np.asarray(np.add.reduceat(shares, np.arange(0, keys.shape[1], block_size), axis=-1))


@dataclass(frozen=True, slots=True)
class LayerSelection:
    """What the lists of one layer keep of the exact attention to the context, means over KV heads and passes.

    Attributes:
        read: share of the blocks that the list has.
        kept: share of the attention of all rows that these blocks get.
        first_row: the most that as many blocks keep which are the best for the first row.
        best: the most that as many blocks can keep for all rows.
    """

    layer: int
    read: float
    kept: float
    first_row: float
    best: float

    @classmethod
    def of(cls, layer: int, lists: NDArray[np.int32], masses: Masses) -> LayerSelection:
        """Of one pass: `lists` i32 `[kv_heads, blocks]`, -1 behind their ends; `masses` of `exact_masses`."""
        scored, figures = masses.shape[-1], []
        for head, chosen in enumerate(lists):
            own = masses[:, head]
            total = own.mean(axis=0)
            kept = chosen[(chosen >= 0) & (chosen < scored)]
            best, first = (np.argsort(-of)[: len(kept)] for of in (total, own[0]))
            figures.append((len(kept) / scored, *(total[some].sum() for some in (kept, first, best))))
        return cls(layer, *map(float, np.mean(figures, axis=0)))


@dataclass(frozen=True, slots=True)
class SelectionReport:
    """What the passes of `SelectionEval` came to.

    Attributes:
        layers: means over the passes, of the layers that select.
        decisions: of the model with these lists and of the dense one, at every row.
        density: share of the context's bytes that attention read, summaries included.
    """

    sparse: SparseVerify
    selection: SelectionInForce
    layers: list[LayerSelection]
    decisions: list[Decision]
    density: float
    passes: int
    rows: int

    @property
    def kl(self) -> float:
        """Mean KL(dense || sparse) of a decision, nats."""
        return float(np.mean([one.kl for one in self.decisions]))

    @property
    def agreement(self) -> float:
        """Share of the decisions with dense's first choice."""
        return float(np.mean([one.agrees for one in self.decisions]))

    def as_json(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "verify": verify_in_force(self.sparse, self.selection),
            "passes": self.passes,
            "rows": self.rows,
            "density": self.density,
            "kl": self.kl,
            "top1_agreement": self.agreement,
            "layers": [asdict(layer) for layer in self.layers],
        }

    def tables(self) -> list[Table]:
        """One row per layer that selects, and their mean."""
        figures = [(str(one.layer), one.read, one.kept, one.first_row, one.best) for one in self.layers]
        means = [float(np.mean(column)) for column in list(zip(*figures, strict=True))[1:]]
        columns = ("layer", "blocks read", "attention kept", "best for the first row", "best for all rows")
        rows = [(name, *(f"{value:.3f}" for value in values)) for name, *values in figures]
        return [table_of("", columns, [*rows, ("mean", *(f"{value:.3f}" for value in means))])]

    def notes(self) -> list[str]:
        """How to read it, and what it costs."""
        return [
            f"{self.passes} passes of {self.rows} rows, attention density {self.density:.3f}: mean KL "
            f"{self.kl:.4f} nats, same first choice {self.agreement:.3f}",
            '"kept" below "best for all rows": what the estimate of attention loses; "best" below 1: what '
            "the budget loses",
        ]


@dataclass(frozen=True, slots=True)
class SelectionEval:
    """Exact attention masses beside the lists that the native rule makes.

    A text is read densely but for its end. There, passes of a few rows select; each is repeated densely, so
    that keys and values stay exact.

    Args:
        sparse: the rule and the budget; without a rule the default one.
        rows: of a pass.
        passes: of a text.
        context: tokens of a text at most; the first ones are kept. `None`: no limit.

    Raises:
        ValueError: numbers out of range.
    """

    model: Path
    prompts: Sequence[Prompt]
    sparse: SparseVerify
    rows: int = 5
    passes: int = 20
    context: int | None = None

    def run(self, properties: Mapping[str, object], on_step: Callable[[str], None]) -> SelectionReport:
        """Measure; `on_step` is called for every text.

        Raises:
            ValueError: no text is long enough for a pass that selects, or one has more tokens than the model
                positions.
        """
        attention = replace(sparse_attention("native", self.sparse), watches=True)
        runner = ModelRunner(self.model, "CPU", attention, properties)
        tokenizer = read_tokenizer(self.model)
        positions = ModelInfo.read(self.model).max_position_embeddings
        selection = SelectionInForce.of(runner)
        assert selection is not None
        assert selection.layers is not None  # native operations say which
        selecting = selection.layers
        found: list[list[LayerSelection]] = []
        decisions: list[Decision] = []
        read = whole = 0.0
        for prompt in self.prompts:
            on_step(f"line {prompt.line}")
            ids = np.array(encode(tokenizer, prompt.text)[: self.context], np.int64)
            if positions is not None and len(ids) > positions:
                raise ValueError(
                    f"the text in line {prompt.line} has {len(ids)} tokens, the model {positions} positions; "
                    "cut texts with --context"
                )
            cached = CachedSequence()
            begin = max(1, len(ids) - self.rows * self.passes)
            runner.prefill(cached, ids[:begin], DEFAULT_MAX_NUM_BATCHED_TOKENS)
            for first in range(begin, len(ids) - self.rows + 1, self.rows):
                rows = ids[first : first + self.rows]
                sparse, stats, layers = self._select(runner, selecting, cached, rows)
                cached.rollback(first)
                dense = runner.forward([Rows(cached, rows, len(rows))]).logits
                if layers:
                    found.append(layers)
                    pairs = zip(dense, sparse, strict=True)
                    decisions += [decide(one, other) for one, other in pairs]
                    read, whole = read + stats[0], whole + stats[1]
            runner.release(cached)
        if not found:
            raise ValueError(
                "nothing was selected: every pass reads all of its context; give longer texts, or a smaller "
                "--budget"
            )
        layers = [_mean(same) for same in zip(*found, strict=True)]
        return SelectionReport(self.sparse, selection, layers, decisions, read / whole, len(found), self.rows)

    def _select(
        self,
        runner: ModelRunner,
        selecting: Sequence[int],
        cached: CachedSequence,
        rows: NDArray[np.int64],
    ) -> tuple[NDArray[np.float32], tuple[float, float], list[LayerSelection]]:
        """Logits of a pass that selects, what it read, and its layers; none where it reads everything."""
        past = cached.length
        budget = self.sparse.budget_blocks(past + len(rows), runner.block_size)
        result = runner.forward([Rows(cached, rows, len(rows), budget)])
        logits, lists = result.logits.copy(), np.array(result.output(SELECTED_BLOCKS))
        stats = result.stats.attended[0]
        if not (lists >= 0).any():
            return logits, stats, []
        queries = np.array(result.output(SELECTING_QUERIES))
        layers = []
        for number, layer in enumerate(selecting):
            keys = keys_of(runner, cached, layer, past)
            query = queries[number].reshape(len(rows), len(keys), -1, keys.shape[-1])
            masses = exact_masses(query, keys, runner.block_size)
            layers.append(LayerSelection.of(layer, lists[number], masses))
        return logits, stats, layers


def keys_of(runner: ModelRunner, cached: CachedSequence, layer: int, past: int) -> NDArray[np.float64]:
    """The first `past` keys of a layer as the cache holds them, f64 `[kv_heads, past, k_size]`."""
    tensor = runner.cache.tensor(f"key_cache.{layer}")
    data = tensor.data.view(np.uint16) if tensor.element_type == ov.Type.bf16 else tensor.data
    by_token = data.dtype == np.uint8 and data.shape[2] == runner.block_size
    size = data.shape[-1] - (8 if by_token else 0)
    blocks = decode_block(data[cached.table[: -(-past // runner.block_size)]], size)
    return np.asarray(blocks.transpose(1, 0, 2, 3).reshape(blocks.shape[1], -1, size)[:, :past])


def _mean(same: Sequence[LayerSelection]) -> LayerSelection:
    figures = np.mean([(one.read, one.kept, one.first_row, one.best) for one in same], axis=0)
    return LayerSelection(same[0].layer, *map(float, figures))
