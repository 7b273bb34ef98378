"""The part of a generation configuration that is about beams, checked."""

from __future__ import annotations

import math

import openvino_genai

from ovspec.errors import InvalidValueError
from ovspec.sampling.beam_search import BeamParams

#: What says how to search with several beams, and nothing with one.
OF_BEAMS: dict[str, object] = {
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "length_penalty": 1.0,
    "stop_criteria": openvino_genai.StopCriteria.HEURISTIC,
}
_PENALTIES = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


def beams_of(config: openvino_genai.GenerationConfig) -> BeamParams | None:
    """How to search with several beams; `None`: there is one.

    Raises:
        InvalidValueError: a value or combination that can't be searched with. What openvino_genai refuses is
            not looked at.
    """
    given = {name: getattr(config, name) for name in OF_BEAMS}
    if config.num_beams < 1:
        raise InvalidValueError(f"num_beams={config.num_beams}: expected 1 or more; 1 searches nothing")
    if config.num_beams == 1:
        for name, value in given.items():
            if value != OF_BEAMS[name]:
                shown = f"{value:g}" if isinstance(value, float) else value
                raise InvalidValueError(
                    f"{name}={shown}: it is for beams; set num_beams above 1, or leave it out"
                )
        return None
    for name, off in _PENALTIES.items():
        if (value := getattr(config, name)) != off:
            raise InvalidValueError(f"{name}={value:g}: beams take no penalty; set it to {off:g}")
    for name in ("diversity_penalty", "length_penalty"):
        if not math.isfinite(given[name]):
            raise InvalidValueError(f"{name}={given[name]:g}: expected a finite number")
    if config.num_beam_groups < 1:
        raise InvalidValueError(f"num_beam_groups={config.num_beam_groups}: expected 1 or more")
    if config.max_new_tokens == 0:
        raise InvalidValueError(f"max_new_tokens=0: num_beams={config.num_beams} need one at least; raise it")
    return BeamParams(config.num_beams, **given)
