"""`hydra`: heads draft one after the other, each behind the tokens before its own (Hydra, arXiv 2402.05109).

They read the state from which the target wrote its last token. In Hydra++ this passes a decoder layer over
the states of the whole text first, whose cache has an entry of every state and nothing of a draft.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import replace

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.devices.devices import openvino_core
from ovspec.drafters.cached_head import CachedHead
from ovspec.drafters.drafter import Drafter, Proposal
from ovspec.drafters.head_fit import read_head
from ovspec.drafters.hydra_heads import HydraHeads
from ovspec.drafters.last_state import LastStateHead
from ovspec.generation.sequence import Sequence
from ovspec.graphs.compile import read_model
from ovspec.operations.backends import Backends
from ovspec.runner.model_runner import ModelRunner
from ovspec_models import ModelInfo
from ovspec_models.folder.head_info import HeadInfo
from ovspec_transforms import embedding_of


def load_hydra(info: HeadInfo, target: ModelInfo, backends: Backends, prefill_chunk: int) -> Drafter:
    """Compile the heads of a folder for a target.

    Args:
        info: of the heads' folder.
        target: of the target's folder, whose embedding they take.
        backends: the operations that compute them.
        prefill_chunk: rows per pass while a prompt is read.

    Raises:
        ValueError: heads for another target.
    """
    # With the exports of all heads; a pipeline without this head starts sooner.
    from ovspec_models.heads import open_hydra

    core = openvino_core()
    parts = open_hydra(read_head(info))
    embedding = embedding_of(read_model(core, target.folder))
    vocab_size = parts.heads[0].output(0).get_partial_shape()[-1].get_length()
    found = (parts.size, embedding.output(0).get_partial_shape()[-1].get_length(), vocab_size)
    if found != (target.hidden_size, target.hidden_size, target.vocab_size):
        raise ValueError(
            f"'{info.folder}' holds heads for another target: hidden size {found[0]} and vocabulary "
            f"{found[2]}, this target's {target.hidden_size} (embedding: {found[1]}) and {target.vocab_size}"
        )

    def compiled(model: ov.Model) -> ov.CompiledModel:
        return core.compile_model(model, backends.device, dict(backends.properties))

    heads = HydraHeads(compiled(embedding), [compiled(head) for head in parts.heads])
    if not parts.has_prefix:
        return HydraDrafter(compiled(parts.states), heads)
    own = ModelInfo.read(info.folder)
    runner = ModelRunner(parts.states, backends=backends)
    return HydraPrefixDrafter(runner, heads, prefill_chunk, own.max_position_embeddings)


class HydraDrafter(LastStateHead):
    """Drafts with heads that read the state itself.

    Args:
        states: f32 `[rows, hidden size]` to what they give to the heads.
        heads: behind it.
    """

    name = "hydra"

    def __init__(self, states: ov.CompiledModel, heads: HydraHeads) -> None:
        super().__init__(states)
        self._heads = heads

    def _drafts(
        self, sequences: SequenceOf[Sequence], counts: SequenceOf[int], given: NDArray[np.float32]
    ) -> list[Proposal]:
        drafts = self._heads.draft(sequences, counts, given)
        self.last_duration += self._heads.duration
        return drafts


class HydraPrefixDrafter(CachedHead):
    """Drafts with heads behind a decoder layer over all states (Hydra++).

    Args:
        runner: of the decoder layer; its output is what states give to the heads.
        heads: behind it.
        prefill_chunk, positions: as of `CachedHead`.
    """

    shift = 0
    why_no_trees = ""

    def __init__(
        self, runner: ModelRunner, heads: HydraHeads, prefill_chunk: int, positions: int | None = None
    ) -> None:
        super().__init__("hydra", runner, None, prefill_chunk, positions)
        self._heads = heads

    def _draft(self, sequences: SequenceOf[Sequence], counts: SequenceOf[int]) -> dict[int, Proposal]:
        asked = list(self._drafting(sequences, counts))
        if not asked:
            return {}
        chosen = [sequences[index] for index in asked]
        result = self.runner.forward(
            [replace(self._entries(sequence, self._known(sequence)), sampled=1) for sequence in chosen]
        )
        self.last_duration = result.duration
        self._pass_by(sequences, asked)
        drafts = self._heads.draft(chosen, [counts[index] for index in asked], result.logits)
        self.last_duration += self._heads.duration
        for sequence in chosen:
            self._publish(sequence)
        return dict(zip(asked, drafts, strict=True))
