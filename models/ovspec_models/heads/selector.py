"""DFlash2's selector: of the likeliest tokens of a place, which goes with the token before it."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset15 as ops

from ovspec_models.folder.head_info import block_settings
from ovspec_models.folder.shown import shown
from ovspec_models.heads.checkpoint import CheckpointWeights, HeadCheckpoint
from ovspec_models.heads.correction_form import (
    BEFORE,
    GIVEN,
    Arrays,
    CorrectionForm,
    Place,
    Sizes,
    rows_of,
)
from ovspec_models.heads.settings import HeadSettings
from ovspec_models.synthetic.layers import i64

_HEAD, _AFTER = "candidate_selector", "after.weight"
_SETTINGS = ("selector_rank", "selector_top_k", "conv_kernel_size", "conv_group_size")


def _arrays(checkpoint: HeadCheckpoint, sizes: Sizes) -> Arrays:
    if sizes.drafted != sizes.target:
        raise ValueError(
            f"head '{checkpoint.folder}': draft_vocab_size of config.json is {sizes.drafted}, vocab_size "
            f"{sizes.target}; a DFlash2 head drafts all of its target's tokens; take another head"
        )
    if sizes.candidates > sizes.drafted:
        raise ValueError(
            f"head '{checkpoint.folder}': selector_top_k of config.json is {shown(sizes.candidates)}, "
            f"expected at most the {sizes.drafted} tokens; get the head again"
        )
    said = block_settings(checkpoint.config)
    rank = checkpoint.count("selector_rank", config=said)
    table = (sizes.target, rank)
    return {
        **{
            name: checkpoint.array(f"{_HEAD}.{theirs}", f"{_HEAD}.{theirs}.weight", dims=table)
            for name, theirs in ((BEFORE, "predecessor_codebook"), (_AFTER, "successor_codebook"))
        },
        GIVEN: checkpoint.array(f"{_HEAD}.hidden_projection.weight", dims=(rank, sizes.hidden)),
    }


def _step(
    weights: CheckpointWeights, arrays: Arrays, place: Place, sizes: Sizes
) -> tuple[ov.Node, ov.Node | None]:
    """Logits of the candidates alone; others can't be drafted."""
    candidates = ops.constant(np.array(sizes.candidates, np.int64))
    best = ops.topk(place.logits, candidates, 1, "max", "value", index_element_type="i64")
    after = rows_of(weights, _AFTER, best.output(1))
    wanted = ops.unsqueeze(ops.multiply(place.before, place.given), i64(1))
    scores = ops.add(best.output(0), ops.reduce_sum(ops.multiply(wanted, after), i64(2), keep_dims=False))
    none = ops.broadcast(np.array(-np.inf, np.float32), ops.shape_of(place.logits))
    return ops.scatter_elements_update(none, best.output(1), scores, i64(1)), None


SELECTOR = CorrectionForm(
    _arrays,
    lambda arrays: 0,
    _step,
    HeadSettings(read=_SETTINGS, values={}, inside={"dflash_config": _SETTINGS}),
    whole=True,
)
