"""What a head adds to a place's logits by the tokens that were drafted before it, as parts of its graph.

One part reads the states of a block, once; the other goes from place to place behind the tokens of a path.
Both lie in the head's IR, and `open_correction` takes them out of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import openvino as ov
from openvino import opset15 as ops

from ovspec_models.folder.head_info import correction_of, form_of
from ovspec_models.heads.checkpoint import CheckpointWeights, HeadCheckpoint, take_part
from ovspec_models.heads.correction_form import (
    BEFORE,
    CONFIDENCE,
    GIVEN,
    GIVEN_MEAN,
    Arrays,
    CorrectionForm,
    Place,
    Sizes,
    columns,
    rows_of,
)
from ovspec_models.heads.markov import MARKOV
from ovspec_models.heads.refiner import REFINER
from ovspec_models.heads.selector import SELECTOR
from ovspec_models.heads.settings import HeadSettings
from ovspec_models.synthetic.decoder import parameter
from ovspec_models.synthetic.layers import i64, linear

_PREFIX = "correction."
_STATES, _MADE = f"{_PREFIX}states", f"{_PREFIX}made"
_INPUTS = tuple(_PREFIX + name for name in ("number", "given", "token", "state", "logits"))
_NUMBER, _GIVEN, _TOKEN, _STATE, _LOGITS = _INPUTS
_OUTPUTS = tuple(_PREFIX + name for name in ("corrected", "next", "confidence"))
_CORRECTED, _NEXT, _CONFIDENCE = _OUTPUTS
_FORMS = {"dspark": MARKOV, "dflash2": SELECTOR, "xpress": REFINER}


@dataclass(frozen=True, slots=True)
class Correction:
    """A head's correction.

    Attributes:
        given: f32 `[block, hidden]` to f32 `[block, given]`, what steps read of a block's states; `None`:
            they read nothing of them.
        step: `number`, `given`, `token`, `state`, `logits` to `corrected`, `next`, `confidence`; each where
            the form has it.
        state: numbers of a path's state.
        leads, whole: as of `CorrectionForm`.
    """

    given: ov.Model | None
    step: ov.Model
    state: int
    leads: int
    whole: bool


def _form(config: dict[str, Any]) -> CorrectionForm | None:
    return _FORMS.get(correction_of(config))


def correction_settings(config: dict[str, Any]) -> HeadSettings:
    """The settings that a head's correction is made by; nothing if it has none."""
    form = _FORMS.get(form_of(config) or "")
    return form.settings if form else HeadSettings((), {})


def correction_arrays(checkpoint: HeadCheckpoint, sizes: Sizes) -> Arrays:
    """The weights of a head's correction; nothing if it has none.

    Raises:
        ValueError: a weight is missing or has another shape, or config.json does not say what is read.
    """
    form = _form(checkpoint.config)
    return form.arrays(checkpoint, sizes) if form else {}


def correction_graph(
    config: dict[str, Any], arrays: Arrays, is_f32: bool, sizes: Sizes
) -> tuple[list[ov.Node], dict[str, ov.Node]]:
    """Inputs and outputs of a head's correction, to be put into its graph; nothing if it has none.

    Args:
        config: config.json of the head.
        arrays: as of `correction_arrays`.
        is_f32: whether the weights stay f32.
        sizes: of the head.
    """
    form, weights = _form(config), CheckpointWeights(arrays, is_f32)
    if form is None:
        return [], {}
    given, state = len(arrays.get(GIVEN, ())), form.state(arrays)
    token = parameter(_TOKEN, ov.Type.i64, -1)
    place = Place(
        number=parameter(_NUMBER, ov.Type.i64, -1),
        given=parameter(_GIVEN, ov.Type.f32, -1, given),
        before=rows_of(weights, BEFORE, token),
        state=parameter(_STATE, ov.Type.f32, -1, state),
        logits=parameter(_LOGITS, ov.Type.f32, -1, sizes.drafted),
    )
    states, outputs = parameter(_STATES, ov.Type.f32, -1, sizes.hidden), dict[str, ov.Node]()
    outputs[_CORRECTED], following = form.step(weights, arrays, place, sizes)
    if following is not None:
        outputs[_NEXT] = following
    if given:
        outputs[_MADE] = _made(states, arrays, weights)
    if CONFIDENCE in arrays:
        said = columns(place.given, given - 1, given)
        if arrays[CONFIDENCE].size:
            said = ops.add(said, linear(place.before, weights, CONFIDENCE))
        outputs[_CONFIDENCE] = ops.sigmoid(said)
    every = (states, place.number, place.given, token, place.state, place.logits)
    return [node for node in every if node.output(0).get_target_inputs()], outputs


def _made(states: ov.Node, arrays: Arrays, weights: CheckpointWeights) -> ov.Node:
    made = linear(states, weights, GIVEN)
    if GIVEN_MEAN in arrays:
        mean = ops.reduce_mean(states, i64(0), keep_dims=True)
        made = ops.add(made, linear(mean, weights, GIVEN_MEAN))
    return made


def open_correction(model: ov.Model, name: str) -> Correction | None:
    """Take the correction out of a head's graph, in place; `None`: it has none.

    Args:
        model: the graph.
        name: of the form, as `HeadInfo.correction`.

    Raises:
        ValueError: the graph has none.
    """
    if not name:
        return None
    form = _FORMS[name]
    made = {name for port in model.outputs for name in port.get_names()}
    if not made.intersection(_OUTPUTS):
        raise ValueError(
            "the head's graph lacks the correction that its config.json asks for; export the checkpoint "
            "again with `ovspec export --dflash`"
        )
    ports = {name: port for port in model.inputs for name in port.get_names()}
    state = ports[_STATE].get_partial_shape()[-1].get_length() if _STATE in ports else 0
    given = take_part(model, [_STATES], [_MADE]) if _STATES in ports else None
    step = take_part(model, _INPUTS, _OUTPUTS)
    for port in [*step.inputs, *step.outputs]:
        port.get_tensor().set_names({name.removeprefix(_PREFIX) for name in port.get_names()})
    return Correction(given, step, state, form.leads, form.whole)
