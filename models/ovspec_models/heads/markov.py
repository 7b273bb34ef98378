"""DSpark's Markov head: a bias W1[token before] W2, which a gate or a recurrent state may change."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset15 as ops

from ovspec_models.folder.head_info import block_settings, is_pure
from ovspec_models.folder.shown import shown
from ovspec_models.heads.checkpoint import CheckpointWeights, HeadCheckpoint
from ovspec_models.heads.correction_form import (
    BEFORE,
    CONFIDENCE,
    GIVEN,
    GIVEN_BIAS,
    Arrays,
    CorrectionForm,
    Place,
    Sizes,
    columns,
    f32,
)
from ovspec_models.heads.settings import HeadSettings
from ovspec_models.synthetic.layers import linear

_HEAD, _CONFIDENCE = "markov_head", "confidence_head.proj"
_SIZES = ("markov_rank", "markov_head_type")
_FLAGS = ("enable_confidence_head", "confidence_head_with_markov")
_PLACES = ("", "dflash_config.")
# Settings of DeepSpec that its published heads do not use.
_OF_OTHERS = ("dflash_query_causal", "log_snr_conditioning", "enable_qwen35_gated_q_proj")
_OUTPUT, _GATE, _JOINT = "output.weight", "gate.weight", "joint.weight"


def _arrays(checkpoint: HeadCheckpoint, sizes: Sizes) -> Arrays:
    found = _none(checkpoint, sizes) if is_pure(checkpoint.config) else _markov(checkpoint, sizes)
    if block_settings(checkpoint.config).get("enable_confidence_head", True):
        _add_confidence(checkpoint, found, sizes)
    return found


def _none(checkpoint: HeadCheckpoint, sizes: Sizes) -> Arrays:
    """Of a head with confidences alone, which no token before changes."""
    if block_settings(checkpoint.config).get("confidence_head_with_markov", True):
        raise ValueError(
            f"head '{checkpoint.folder}': confidence_head_with_markov of config.json is true, and "
            "markov_rank 0: there is no Markov head to read; get the head again"
        )
    return {BEFORE: np.zeros((sizes.target, 0), np.float32)}


def _markov(checkpoint: HeadCheckpoint, sizes: Sizes) -> Arrays:
    said = block_settings(checkpoint.config)
    rank, kind = checkpoint.count("markov_rank", config=said), said.get("markov_head_type", "vanilla")
    hidden, array = sizes.hidden, checkpoint.array
    found = {
        BEFORE: array(f"{_HEAD}.markov_w1.weight", dims=(sizes.target, rank)),
        _OUTPUT: array(f"{_HEAD}.markov_w2.weight", dims=(sizes.drafted, rank)),
    }
    if kind == "gated":
        weight = array(f"{_HEAD}.gate_proj.weight", dims=(rank, hidden + rank))
        found |= {GIVEN: weight[:, :hidden], _GATE: weight[:, hidden:]}
        found[GIVEN_BIAS] = array(f"{_HEAD}.gate_proj.bias", dims=(rank,))
    elif kind == "rnn":
        weight = array(f"{_HEAD}.joint_proj.weight", dims=(3 * rank, 2 * rank + hidden))
        found |= {_JOINT: weight[:, : 2 * rank], GIVEN: weight[:, 2 * rank :]}
        found[GIVEN_BIAS] = array(f"{_HEAD}.joint_proj.bias", dims=(3 * rank,))
    elif kind != "vanilla":
        raise ValueError(
            f"head '{checkpoint.folder}': markov_head_type of config.json is {shown(kind)}, expected "
            "vanilla, gated or rnn; take another head"
        )
    return found


def _add_confidence(checkpoint: HeadCheckpoint, found: Arrays, sizes: Sizes) -> None:
    """One more number that is given, the part of the states in the confidence."""
    hidden, said = sizes.hidden, block_settings(checkpoint.config)
    reads_token = said.get("confidence_head_with_markov", True)
    rank = found[BEFORE].shape[1] if reads_token else 0
    weight = checkpoint.array(f"{_CONFIDENCE}.weight", dims=(1, hidden + rank))
    bias = checkpoint.array(f"{_CONFIDENCE}.bias", dims=(1,))
    none = np.zeros((0, hidden), np.float32)
    found[GIVEN] = np.concatenate([found.get(GIVEN, none), weight[:, :hidden]])
    found[GIVEN_BIAS] = np.concatenate([found.get(GIVEN_BIAS, none[:, 0]), bias])
    found[CONFIDENCE] = weight[:, hidden:]


def _state(arrays: Arrays) -> int:
    return arrays[BEFORE].shape[1] if _JOINT in arrays else 0


def _step(
    weights: CheckpointWeights, arrays: Arrays, place: Place, sizes: Sizes
) -> tuple[ov.Node, ov.Node | None]:
    if _OUTPUT not in arrays:  # without a Markov head; a result is no parameter
        return ops.add(place.logits, f32(0)), None
    before, rank, state = place.before, arrays[BEFORE].shape[1], None
    if _GATE in arrays:
        given = columns(place.given, 0, rank)
        before = ops.multiply(ops.sigmoid(ops.add(linear(before, weights, _GATE), given)), before)
    elif _JOINT in arrays:
        product = linear(ops.concat([place.state, before], -1), weights, _JOINT)
        joint = ops.add(product, columns(place.given, 0, 3 * rank))
        gate, new, out = (columns(joint, part * rank, (part + 1) * rank) for part in range(3))
        kept = ops.sigmoid(gate)
        changed = ops.multiply(ops.subtract(f32(1), kept), ops.tanh(new))
        state, before = ops.add(ops.multiply(kept, place.state), changed), ops.tanh(out)
    return ops.add(place.logits, linear(before, weights, _OUTPUT)), state


MARKOV = CorrectionForm(
    _arrays,
    _state,
    _step,
    HeadSettings(
        read=(*_SIZES, "target_layer_ids"),
        values={
            **{f"{place}{name}": (True, False) for place in _PLACES for name in _FLAGS},
            "dflash_config.projector_type": ("dspark",),
            **dict.fromkeys(_OF_OTHERS, (False,)),
        },
        # SpecForge writes them there; the last one is of its training.
        inside={"dflash_config": (*_SIZES, "confidence_head_alpha")},
    ),
)
