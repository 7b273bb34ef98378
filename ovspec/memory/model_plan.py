"""The memory that one model of a pipeline will need."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ovspec.cache.sequence_states import MOST_STATES
from ovspec.devices.devices import openvino_core
from ovspec.devices.huge_pages import with_huge_pages
from ovspec.graphs.model_cache import ModelCache
from ovspec.operations.attention_config import AttentionConfig
from ovspec.operations.backends import Backends
from ovspec.operations.expert_budgets import ExpertConfig
from ovspec.operations.ffn_budgets import FfnConfig
from ovspec_models import ModelInfo, WeightSizes
from ovspec_ops import BLOCK_SIZE

# The fit of a plan to measured memory: resident anonymous bytes of pipelines of several shapes, formats and
# contexts. tests/memory/test_memory_measured.py holds it to that.
# Libraries, tokenizer, and what starts differ by: of 80 alike the largest took 25 MB more than the least.
PROCESS_BYTES = 80 * 10**6
# The compiled graph: a layer of single operations, and one in an operation of many layers.
_LAYER_BYTES, _JOINED_LAYER_BYTES = 2_100_000, 900_000
_HIDDEN_BYTES = 20  # per row of a pass and value
_INNER_BYTES, _INNER_BYTES_F32 = 11, 14  # of queries, keys, values, and gated channels
#: Rows of a pass whose logits are counted, where a plan does not say how many requests run.
SAMPLED_ROWS = 16
# VerifyAttention merges results of parts of the context, of so many tokens each, in at most so many bytes.
_PART_TOKENS = 512
_PARTS_BYTES = 1 << 25
#: States of linear attention that a request has at most: those that a pass reads and writes, and one that a
#: commit comes back to. Without drafts a pass writes one, but for prompts with log probabilities.
STATES, STATES_UNDRAFTED = MOST_STATES + 2, 3
_CACHE_ENTRY_BYTES = 60 * 10**6  # while an entry is written, beside its largest weight

# "none": the compiled model is not kept in CACHE_DIR; "fills": this start keeps it; "holds": it is there.
CacheUse = Literal["none", "fills", "holds"]


def cache_use(folder: Path, backends: Backends) -> CacheUse:
    """Whether CACHE_DIR holds a model as its backends compute it.

    Raises:
        ValueError: a CACHE_DIR, or a property, that can't be served.
    """
    if not backends.uses_cache_dir:
        return "none"
    cache = ModelCache(openvino_core(), folder, backends)
    if cache.refuses():
        return "none"
    return "holds" if cache.holds() else "fills"


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """Memory of one model, in bytes.

    Attributes:
        weights: copies in the layout of the operations that read them, and the compiled graph.
        start: beside them while the model is made.
        cache: keys and values of the whole context, and states of layers that have none.
        working: activations and scores of a pass of the most rows at its end, and logits.
        mapped: of files, which the system drops when it needs the memory and reads again; counted nowhere.
    """

    weights: int
    start: int
    cache: int
    working: int
    mapped: int

    @property
    def steady(self) -> int:
        """Bytes that are held with the whole context in the cache."""
        return self.weights + self.cache + self.working


def plan_model(
    model: ModelInfo,
    sizes: WeightSizes,
    backends: Backends,
    cache: CacheUse,
    context: int,
    rows: int,
    token_bytes: int,
    sampled: int = SAMPLED_ROWS,
    states: int = STATES,
) -> ModelPlan:
    """One model's plan for a context of so many tokens, or for several that have so many together.

    Args:
        cache: what CACHE_DIR has of it.
        rows: of a pass at most.
        token_bytes: of keys and values of one token, all layers together.
        sampled: rows of a pass whose logits are computed.
        states: of linear attention that are held at a time.
    """
    made, held, transient = _weights(sizes, backends, cache)
    layer = _JOINED_LAYER_BYTES if backends.joins_layers else _LAYER_BYTES
    tokens = -(-context // BLOCK_SIZE) * BLOCK_SIZE + BLOCK_SIZE  # one block is being filled
    start = 0 if cache == "holds" else max(0, made - held) + transient
    tensors = 2 * model.num_kv_layers
    tensor = tokens * token_bytes // tensors
    mapped = sizes.total
    if cache != "none":
        mapped += sizes.total if backends.linear == "stock" else made
        start += 0 if cache == "holds" else _CACHE_ENTRY_BYTES + sizes.largest
    value_bytes = 4 if backends.arithmetic == "f32" else 2
    return ModelPlan(
        weights=held + layer * model.num_hidden_layers,
        start=start,
        cache=tokens * token_bytes + states * model.state_values * value_bytes,
        # The cache is copied tensor by tensor when it grows, and each ends with a whole page.
        working=_working_bytes(model, backends, rows, context, sampled)
        + tensor
        + (tensors * (with_huge_pages(tensor) - tensor) if backends.on_cpu else 0),
        mapped=mapped,
    )


def _weights(sizes: WeightSizes, backends: Backends, cache: CacheUse) -> tuple[int, int, int]:
    """Copies of weights when the model is made, those that are held, and what is needed to make them."""
    copied = sizes.total - sizes.embedding
    if _native(backends.experts):
        copied -= sizes.experts
    transient = 0
    if _native(backends.ffn):
        if sizes.ups_stay:
            copied -= sizes.ups + (sizes.gates if backends.linear == "stock" else 0)
        transient = 2 * sizes.ffn_values
    if cache == "none":
        return copied, copied, transient
    # Weights of our operations are mapped then; OpenVINO's own are laid out anew at every start.
    ours = sizes.total - sizes.embedding - sizes.experts if backends.linear == "native" else 0
    return copied, max(0, copied - ours), transient


def _working_bytes(model: ModelInfo, backends: Backends, rows: int, context: int, sampled: int) -> int:
    head_dim = max(model.head_dim, model.full_head_dim)
    qkv = head_dim * (model.num_attention_heads + 2 * model.num_key_value_heads)
    inner = model.intermediate_size
    if model.num_experts:
        inner = model.num_experts_per_tok * model.moe_intermediate_size
        if not _native(backends.experts):  # it gathers the rows of each expert, and keeps what each gives
            inner += 2 * model.num_experts_per_tok * model.hidden_size
    inner_bytes = _INNER_BYTES_F32 if backends.arithmetic == "f32" else _INNER_BYTES
    activations = rows * (inner_bytes * (inner + qkv) + _HIDDEN_BYTES * model.hidden_size)
    if _native(backends.attention):
        parts = -(-context // _PART_TOKENS) * rows * model.num_attention_heads * (head_dim + 2)
        attention = min(4 * parts, _PARTS_BYTES)
    else:  # it lays out the context anew for every pass of a prompt
        value_bytes = 4 if backends.arithmetic == "f32" else 2
        attention = 2 * context * model.num_key_value_heads * head_dim * value_bytes
    return activations + attention + 4 * sampled * model.vocab_size


def _native(part: AttentionConfig | ExpertConfig | FfnConfig | None) -> bool:
    return part is not None and part.backend == "native"
