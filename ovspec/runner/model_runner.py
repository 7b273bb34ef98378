"""One compiled paged model: runs passes over rows of tokens and returns logits of the sampled rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
from numpy.typing import NDArray

import ovspec_ops
from ovspec.adapters.model_adapters import LoadedBlend, ModelAdapters
from ovspec.cache.block_manager import BlockManager
from ovspec.cache.cache import CachedSequence, KVCache
from ovspec.cache.cache_memory import blocks_on
from ovspec.devices.devices import masks_trees, openvino_core
from ovspec.devices.freed_memory import give_back_freed_memory
from ovspec.graphs.compile import block_size_of, compile_paged, read_model, state_tensors
from ovspec.graphs.graph_facts import GraphFacts
from ovspec.graphs.identity import identity_breakers
from ovspec.graphs.model_cache import ModelCache
from ovspec.graphs.model_check import check_graph, naming
from ovspec.graphs.paged_graph import lower, transform
from ovspec.modes.row_limits import ReadLimits
from ovspec.operations.attention_config import AttentionConfig
from ovspec.operations.backends import Backends
from ovspec.operations.expert_budgets import ExpertBudgets, ExpertConfig
from ovspec.operations.ffn_budgets import FfnConfig, FfnLimits
from ovspec.operations.linear_backend import LinearBackend
from ovspec.operations.tree_limits import why_no_tree_mask, why_rows_stay
from ovspec.passes.adapter_rows import AdapterRows
from ovspec.passes.attended_tokens import attended_tokens
from ovspec.passes.computed_layers import ComputedLayers
from ovspec.passes.draft_plan import DraftPlan
from ovspec.passes.long_rope import LongRope
from ovspec.passes.pass_result import PassResult
from ovspec.passes.pass_stats import PassStats
from ovspec.passes.prompt_pieces import pieces, prompt_ends, read_prompts, verified
from ovspec.passes.tables import FEATURES, Rows, build_tables
from ovspec.passes.visual_inputs import VisualInputs
from ovspec.passes.visual_pieces import visual_pieces
from ovspec.passes.watch_rows import watch_rows
from ovspec.runner.compaction import compact
from ovspec.runner.pass_inputs import PassInputs, input_names
from ovspec.runner.recurrent_states import RecurrentStates
from ovspec.stock.gpu_rows import GpuRows
from ovspec.stock.stock_selection import host_selection
from ovspec_models import ModelInfo, OvspecConfig
from ovspec_models.folder.sparse_verify import SparseVerify
from ovspec_transforms import (
    CHANNELS_READ,
    EXPERTS_READ,
    adapted_layers,
    ffn_layers,
    paged_layers,
    rope_limit,
    stock_anchors,
)

# That a graph with selection is made for, before the compiled one says it.
_GPU_BLOCK_SIZE = 16
_PROBE_ROWS = 40
_LONG = b"long RoPE"
_NO_LOGITS = np.zeros((0, 0), np.float32)


class ModelRunner:
    """A paged model on a device, with its cache and its block tables.

    Args:
        model: folder with `openvino_model.xml` as optimum-intel exports it, or the model itself.
        device, attention, properties, plugin_defaults, experts, ffn, linear: as of `Backends.resolve`.
        backends: all of these choices, where they are resolved already; the others are then left out.
        watch: make the rows between operations outputs too, named in `watched`, for `RowProof`; with a name,
            those that lead to this one (`watch_rows`). Such a model is never kept in CACHE_DIR.
        compiling: called when OpenVINO compiles the model, or reads it from CACHE_DIR, and Python is idle.

    Attributes:
        backends: the choices that the graph was made by. `attention`, `experts` and `ffn` hold the numbers in
            force, which may be set anew.

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
        experts: ExpertConfig | None = None,
        ffn: FfnConfig | None = None,
        linear: LinearBackend | None = None,
        backends: Backends | None = None,
        watch: bool | str = False,
        compiling: Callable[[], None] | None = None,
    ) -> None:
        self._watch, self.watched = watch, list[str]()
        if backends is None:
            backends = Backends.resolve(
                model, device, properties, attention, experts, ffn, linear, plugin_defaults
            )
        self.backends, self.attention = backends, backends.attention
        self.experts, self.ffn = backends.experts, backends.ffn
        self.linear, self.row_bits = backends.linear, backends.row_bits
        self.block_size = ovspec_ops.BLOCK_SIZE if backends.on_cpu else _GPU_BLOCK_SIZE
        core = openvino_core()
        if backends.native:
            ovspec_ops.load(core)
        self.gpu_rows = GpuRows.of(backends)
        self._is_part = isinstance(model, ov.Model)  # as heads are: parts of their folder's model
        self._attach(*self._compile(core, model, compiling or (lambda: None)))
        # A key written into a block of one scale changes those that other rows write there.
        apart = self.gpu_rows and not self.cache.shares_scales(self.block_size)
        if self.gpu_rows and apart and FEATURES not in self._inputs.names:
            positions = None if isinstance(model, ov.Model) else ModelInfo.read(model).max_position_embeddings
            self.gpu_rows.measure(self.forward, self.blocks, positions)

    def _attach(self, compiled: ov.CompiledModel, facts: GraphFacts) -> None:
        """Use a compiled model for the passes from now on, with an empty cache."""
        experts, ffn = self.experts, self.ffn
        if experts:
            experts.check(facts.expert_layers)
        self.compiled = compiled
        self.request = compiled.create_infer_request()
        caches, key_axis = facts.caches(compiled), 1 if self.backends.on_cpu else 2
        self.block_size = block_size_of(caches)
        self.cache = KVCache(self.request, caches, blocks_on(self.backends.device), key_axis)
        #: States of layers with linear attention; `None` where there are none.
        self.recurrent = RecurrentStates.of(compiled, self.request)
        self.blocks = BlockManager(self.block_size)
        self.long_rope = None if facts.rope_limit is None else LongRope(facts.rope_limit)
        self.reports = facts.reports
        found = (facts.stock_products, (*self.cache.specs, *state_tensors(compiled)))
        #: Why identical outputs are not promised, a sentence each; empty where they are.
        self.identity_breakers = identity_breakers(self.backends, *found, self.block_size)
        self._expert_layers, self._ffn_layers = facts.expert_layers, facts.ffn_layers
        self._expert_budgets = (
            ExpertBudgets(experts, len(self._expert_layers)) if experts and experts.limits else None
        )
        self._ffn_limits = FfnLimits(ffn, self._ffn_layers) if ffn and ffn.limits else None
        self._selection = host_selection(self.attention, self.block_size, compiled, self.cache, facts.anchors)
        #: What says which layers compute a pass; `None` where all do.
        self.computed_layers = ComputedLayers.of(self.compiled)
        #: Says what pictures give to the rows of a pass; `None` where the model reads none.
        self.visual = VisualInputs.of(self.compiled)
        self._draft_plan = DraftPlan.of(self.compiled, self.block_size)
        #: Whether a pass can draft several tokens.
        self.drafts = self._draft_plan is not None
        #: Packs adapters for this model's layers.
        self.adapters = ModelAdapters(facts.adapted)
        self._adapter_rows = AdapterRows() if facts.adapted else None
        limits = (self._selection, self._expert_budgets, self._ffn_limits)
        rows = (self._adapter_rows, self.computed_layers, self.recurrent, self.visual)
        self._parts = (*limits, *rows, self._draft_plan)
        self._inputs = PassInputs(self.request, self._input_names(), self.backends.native)
        #: Why the rows of a pass can't be a tree, and why trees can't be verified; empty where they can.
        self.why_no_tree_mask = why_no_tree_mask(self.backends, self._inputs.names, bool(self.recurrent))
        self.why_no_trees = self.why_no_tree_mask or why_rows_stay(self.cache, self.block_size)

    def _compile(
        self, core: ov.Core, model: str | Path | ov.Model, compiling: Callable[[], None]
    ) -> tuple[ov.CompiledModel, GraphFacts]:
        """The transformed model, from the user's CACHE_DIR if it has an entry."""
        backends = self.backends

        def build() -> tuple[ov.Model, GraphFacts]:
            graph = model if isinstance(model, ov.Model) else read_model(core, Path(model))
            limit, mlps = rope_limit(graph), ffn_layers(graph)  # before some of them become parts
            native = self.linear == "native"
            choices = (self.attention, self.block_size, self.experts, self.ffn, native)
            heads = (backends.boundaries, masks_trees(backends.device), backends.skips_layers)
            with naming(model):
                reports = transform(graph, *choices, *heads, backends.sights)
            if not isinstance(model, ov.Model):
                check_graph(ModelInfo.read(model), paged_layers(graph), backends.device, self.attention)
            facts = GraphFacts.of(graph, reports, limit, mlps)
            if self.attention.selects and self.attention.backend == "stock":
                facts = replace(facts, anchors=stock_anchors(graph, self.attention.anchor_layers))
            if backends.adapts:
                facts = replace(facts, adapted=adapted_layers(graph, backends.arithmetic))
            facts = facts.behind(graph, lower(graph, backends, facts.adapted, joins=not self._watch))
            if self._watch:
                self.watched = watch_rows(graph, None if self._watch is True else self._watch)
            give_back_freed_memory()
            return graph, facts

        if self._watch or not backends.uses_cache_dir:
            graph, facts = build()
            compiling()
            compiled = compile_paged(core, graph, backends.device, backends.plugin_properties)
            block_size = block_size_of(facts.caches(compiled))
            self.attention.check_block_size(block_size, self.block_size, backends.device)
            return compiled, facts
        if isinstance(model, ov.Model):
            raise ValueError(
                "CACHE_DIR: only the model of a folder can be kept; leave it out, or give a folder"
            )
        config = OvspecConfig.load(Path(model))
        if config is not None and config.operations:  # of the IR itself, which an entry holds as well
            ovspec_ops.load(core)
        compiling()
        compiled, facts = ModelCache(core, Path(model), backends).compile(build, self._probe)
        give_back_freed_memory()
        return compiled, facts

    def _probe(self, compiled: ov.CompiledModel, facts: GraphFacts) -> NDArray[np.float32]:
        """Logits of a few rows of a compiled model: of a prompt, and of verification after it."""
        self._attach(compiled, facts)
        sequence, tokens = CachedSequence(), np.arange(_PROBE_ROWS) % 16
        passes = (Rows(sequence, tokens, sampled=_PROBE_ROWS), Rows(sequence, tokens[:4], sampled=4))
        logits = np.concatenate([self.forward([rows]).logits.copy() for rows in passes])
        self.release(sequence)
        return logits

    def _input_names(self) -> list[str]:
        """The compiled model's inputs beside the caches, all of which a pass provides."""
        native, table = self.attention.backend == "native", np.zeros(1, np.int32)
        rows = Rows(CachedSequence(table), np.zeros(1, np.int64))
        features = [FEATURES] if self.backends.boundaries or self._is_part else []
        provided = {*build_tables([rows], self.block_size, native), *features}
        return input_names(self.compiled, provided.union(*(part.names for part in self._parts if part)))

    def forward(self, batch: Sequence[Rows]) -> PassResult:
        """Run one pass and advance every sequence by its rows; its results are valid until the next pass."""
        recomputed = self.long_rope.recompute(batch, self._duration) if self.long_rope else 0.0
        filled, apart = self.gpu_rows.arranged(batch, self.blocks) if self.gpu_rows else (batch, False)
        try:
            stats = self._compute(batch, filled, apart, recomputed)
        finally:
            for added in filled[len(batch) :]:
                self.release(added.sequence)
        if self.long_rope:
            self.long_rope.remember(batch)
        for rows in batch:
            rows.sequence.length = rows.end
        if batch[0].drafts:
            return PassResult(_NO_LOGITS, stats, self.request)
        logits: NDArray[np.float32] = self.request.get_tensor("logits").data
        logits = logits.reshape(-1, logits.shape[-1])[: sum(rows.sampled for rows in batch)]
        return PassResult(logits, stats, self.request, self._selection)

    def _compute(
        self, batch: Sequence[Rows], filled: Sequence[Rows], apart: bool, recomputed: float
    ) -> PassStats:
        """Compute `filled`, a batch with the rows that `GpuRows` added."""
        needed = self.blocks.required([(rows.sequence, rows.end) for rows in filled])
        if needed > self.cache.capacity:
            self.cache.ensure(needed, soon=self.blocks.required(prompt_ends(filled)))
        for rows in filled:
            for source, target in self.blocks.reserve(rows.sequence, rows.end):
                self.cache.copy(source, target)
        parts = pieces(filled, self.attention.prefill, self.block_size)
        native = self.attention.backend == "native"
        parts = visual_pieces(parts) if native and self.visual else parts
        drafted = self._draft_plan.inputs(parts) if self._draft_plan else {}
        names = [name for name in self._inputs.names if name not in drafted]
        inputs = build_tables(parts, self.block_size, native, names, apart) | drafted
        inputs = self.gpu_rows.fitted(inputs) if self.gpu_rows else inputs
        if self._selection:
            inputs |= self._selection.inputs(parts, apart)
        limits = (self._expert_budgets, self._ffn_limits)
        for part in (*limits, self._adapter_rows, self.computed_layers, self.recurrent, self.visual):
            inputs |= part.inputs(parts) if part else {}
        self._inputs.write(inputs)
        duration = self._inputs.infer() + recomputed
        if batch[0].drafts:
            return PassStats(duration)
        if self.recurrent:
            self.recurrent.finish()
        counts = self._selection.counts(parts, self.request) if self._selection else None
        read = self.request.get_tensor(EXPERTS_READ).data.tolist() if self._expert_budgets else ()
        channels = self.request.get_tensor(CHANNELS_READ).data.tolist() if self._ffn_limits else ()
        share = self._selection.summary_share if self._selection else 0.0
        attended = attended_tokens(counts, parts, self.block_size, share)
        if self._selection:
            self._selection.finish(parts, self.request)
        return PassStats(
            duration,
            tuple(verified(batch, parts, attended)),
            tuple(read_prompts(batch, parts, attended)),
            experts_read=tuple(read),
            experts_held=tuple(layer.experts for layer in self._expert_layers) if read else (),
            channels_read=tuple(channels),
            channels_held=tuple(layer.channels for layer in self._ffn_layers) if channels else (),
        )

    def prefill(
        self, sequence: CachedSequence, tokens: NDArray[np.int64], chunk: int, is_prompt: bool = False
    ) -> PassResult:
        """Run tokens through the model in chunks of at most `chunk` rows.

        Args:
            sequence, is_prompt: as of `Rows`.
            tokens: i64 `[1 or more]`.
            chunk: rows of a pass; with sparse prompts a multiple of 128.

        Returns:
            The last pass, with logits f32 `[1, vocab]` of the last token and the duration of all passes.
        """
        duration, length, begin = 0.0, sequence.length + len(tokens), 0
        while True:
            part, last = tokens[begin : begin + chunk], begin + chunk >= len(tokens)
            rows = Rows(sequence, part, sampled=int(last), text_length=length, is_prompt=is_prompt)
            result = self.forward([rows])
            duration += result.duration
            begin += chunk
            if last:
                return replace(result, stats=PassStats(duration))

    def limits(self, sparse: SparseVerify | None, context: int) -> ReadLimits:
        """What a pass may read, as `ReadLimits.of`; everything where a selection would read no less."""
        limits = ReadLimits.of(sparse, context, self.block_size)
        selection, coverage = self._selection, self.attention.coverage
        if limits.blocks >= 0 and selection and not selection.reads_less(limits.blocks, context, coverage):
            return replace(limits, blocks=-1)
        return limits

    def _duration(self, rows: Rows) -> float:
        """Compute one sequence's rows; microseconds inside the model."""
        return self.forward([rows]).duration

    def compact(self, sequence: CachedSequence, past: int, rows: Sequence[int]) -> None:
        """Keep the accepted path of a tree that the last pass verified; see `compaction.compact`."""
        compact(self.cache, sequence, past, rows, self.block_size)
        if self.long_rope:
            self.long_rope.compact(sequence, past, rows)

    def set_coverage(self, coverage: float) -> None:
        """Set the share of the estimated attention mass to keep, from the next pass on; see `covering`."""
        self.attention = self.attention.covering(coverage)
        if self._selection:
            self._selection.coverage = coverage

    def set_experts(self, experts: ExpertConfig) -> None:
        """Set other expert budgets, from the next pass on.

        Raises:
            ValueError: numbers that do not fit the model, or a graph without budgets or of another operation.
        """
        graph = self.experts
        if graph is None or (graph.backend, graph.limits) != (experts.backend, experts.limits):
            found = f"{graph.backend} experts" if graph and graph.limits else "no expert budgets"
            raise ValueError(
                f"expert budget {experts.budget}, {experts.backend}: this pipeline's graph has {found}; make "
                "another LLMPipeline for it"
            )
        experts.check(self._expert_layers)
        self.experts = experts
        self._expert_budgets = ExpertBudgets(experts, len(self._expert_layers))

    def set_ffn(self, ffn: FfnConfig) -> None:
        """Set other channel densities, from the next pass on.

        Raises:
            ValueError: numbers that do not fit the model, or a graph without limits.
        """
        if self.ffn is None or self.ffn.graph != ffn.graph:
            raise ValueError(
                f"ffn density {ffn.density}: this pipeline's graph has no limits of channels; make another "
                "LLMPipeline for it"
            )
        self._ffn_limits = FfnLimits(ffn, self._ffn_layers)
        self.ffn = ffn

    def limit_cache(self, max_bytes: int | None, cached_bytes: int) -> None:
        """Limit the cache, and what ended sequences leave in it before it grows, as `BlockManager.limit`."""
        self.cache.max_bytes, size = max_bytes, self.cache.block_bytes
        cached = 0 if self.recurrent else cached_bytes // size  # no state is kept to go on behind
        self.blocks.limit(None if max_bytes is None else max_bytes // size, cached)

    def share(self, sequence: CachedSequence, tokens: Sequence[int]) -> int:
        """Begin an empty sequence with what is cached of its first tokens; how many these are."""
        is_long = self.long_rope is not None and len(tokens) > self.long_rope.limit
        seed = self._seed(is_long, sequence.adapters)
        found = self.blocks.share(sequence, sequence.keyed(tokens), seed, self.attention.prompt_piece)
        if self.long_rope and found:
            sequence.tokens, sequence.long_rope = np.array(tokens[:found], np.int64), is_long
        return found

    def publish(self, sequence: CachedSequence, tokens: Sequence[int]) -> None:
        """Let others share the full blocks of a sequence, whose final tokens are given."""
        whole = len(tokens) // self.attention.prompt_piece * self.attention.prompt_piece
        keyed, seed = sequence.keyed(tokens[:whole]), self._seed(sequence.long_rope, sequence.adapters)
        self.blocks.publish(sequence, keyed, seed)

    def _seed(self, long_rope: bool, adapters: LoadedBlend | None) -> bytes:
        """What blocks depend on beside their tokens."""
        prefill, adapted = self.attention.prefill, b"adapters" + adapters.identity if adapters else b""
        return (_LONG if long_rope else b"") + (prefill.identity if prefill else b"") + adapted

    def release(self, sequence: CachedSequence) -> None:
        """Free the blocks of a sequence."""
        self.blocks.release(sequence)
