"""`medusa`: heads beside the target's output layer draft one place each (Medusa, arXiv 2401.10774).

The state from which the target wrote its last token gives the tokens after that one: head i drafts the token
i + 1 places further. There is no cache, and nothing of a draft is kept.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

from ovspec.devices.devices import openvino_core
from ovspec.drafters.draft_tree import depth_of
from ovspec.drafters.drafter import Proposal
from ovspec.drafters.head_fit import read_head
from ovspec.drafters.last_state import LastStateHead
from ovspec.drafters.parallel_draft import parallel_draft
from ovspec.generation.sequence import Sequence
from ovspec.operations.backends import Backends
from ovspec_models import ModelInfo
from ovspec_models.folder.head_info import HeadInfo


def load_medusa(info: HeadInfo, target: ModelInfo, backends: Backends, prefill_chunk: int) -> MedusaDrafter:
    """Compile the heads of a folder for a target.

    Args:
        info: of the heads' folder.
        target: of the target's folder.
        backends: device and properties.
        prefill_chunk: of no meaning here: the heads read the last state of a prompt only.

    Raises:
        ValueError: heads for another target.
    """
    model = read_head(info)
    states, logits = model.input(0).get_partial_shape(), model.output("logits").get_partial_shape()
    found = (states[-1].get_length(), logits[-1].get_length())
    if found != (target.hidden_size, target.vocab_size):
        raise ValueError(
            f"'{info.folder}' holds heads for another target: hidden size {found[0]} and vocabulary "
            f"{found[1]}, this target's {target.hidden_size} and {target.vocab_size}"
        )
    return MedusaDrafter(openvino_core().compile_model(model, backends.device, dict(backends.properties)))


class MedusaDrafter(LastStateHead):
    """Drafts with Medusa heads, for several sequences at once.

    Args:
        states: the heads, f32 `[rows, hidden size]` to logits f32 `[rows, heads, vocabulary]`.
    """

    name = "medusa"

    def _drafts(
        self, sequences: SequenceOf[Sequence], counts: SequenceOf[int], given: NDArray[np.float32]
    ) -> list[Proposal]:
        depths = [
            int(min(count, depth_of(sequence), given.shape[1]))
            for sequence, count in zip(sequences, counts, strict=True)
        ]
        return [
            parallel_draft(sequence, count, places[:depth])
            for sequence, count, places, depth in zip(sequences, counts, given, depths, strict=True)
        ]
