"""Estimate of the bytes that a verification pass reads from memory, without running one."""

from __future__ import annotations

from dataclasses import dataclass

from ovspec.bench.weight_traffic import WeightTraffic
from ovspec_models import ModelInfo
from ovspec_models.folder.sparse_verify import SparseVerify

CONTEXTS = (1024, 4096, 16_384, 65_536)
ROWS = (1, 8)


@dataclass(frozen=True, slots=True)
class PassCost:
    """The estimate for one pass.

    Attributes:
        dense_bytes: weights, and the keys and values of the whole context.
        sparse_bytes: the same with the default `SparseVerify`.
        dense_ms: time to read the dense bytes at the bandwidth at hand; `None` where it was not measured.
    """

    context: int
    rows: int
    dense_bytes: int
    sparse_bytes: int
    dense_ms: float | None
    sparse_ms: float | None


def pass_costs(info: ModelInfo, weights: WeightTraffic, bandwidth: float | None) -> list[PassCost]:
    """Estimate passes at several contexts, as far as the model has positions, with a u8 cache by token.

    What is not reading is left out: at many rows the arithmetic takes longer than the memory.

    `bandwidth`: GB (1e9 bytes) per second, or `None` for bytes alone.
    """
    token = info.kv_cache_bytes_per_token("u8", "BY_TOKEN") / info.num_kv_layers
    budget = SparseVerify()
    limit = info.max_position_embeddings or CONTEXTS[-1]
    costs = []
    for context in sorted({min(context, limit) for context in CONTEXTS}):
        dense = token * sum(min(context, window or context) for window in info.layer_windows)
        sparse = token * sum(
            min(context, window) if window else budget.budget_tokens(context) for window in info.layer_windows
        )
        for rows in ROWS:
            read = weights.read_by(rows)
            both = (int(read + dense), int(read + sparse))
            costs.append(
                PassCost(context, rows, *both, *(bandwidth and 1e-6 * size / bandwidth for size in both))
            )
    return costs
