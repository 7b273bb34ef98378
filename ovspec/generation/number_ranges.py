"""The numbers of openvino_genai's generation configuration, and what each may be."""

from __future__ import annotations

from collections.abc import Callable

import openvino_genai

from ovspec.errors import InvalidValueError
from ovspec_transforms import last_line

_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "temperature": (
        lambda value: value > 0,
        "a number above 0; for the most probable tokens decode greedily",
    ),
    "top_p": (lambda value: 0 < value <= 1, "a share above 0, up to 1"),
    "min_p": (lambda value: 0 <= value < 1, "a share from 0, below 1"),
    "repetition_penalty": (lambda value: value > 0, "a number above 0"),
    "presence_penalty": (lambda value: -2 <= value <= 2, "a number from -2 to 2"),
    "frequency_penalty": (lambda value: -2 <= value <= 2, "a number from -2 to 2"),
}
_OF_SAMPLING = ("temperature", "top_p", "min_p")


def check_ranges(config: openvino_genai.GenerationConfig) -> None:
    """Refuse numbers out of range, and what else openvino_genai refuses.

    Raises:
        InvalidValueError: a number; it begins with name and value. Those of sampling count where the
            configuration samples. Anything else has the words of openvino_genai.
    """
    for name, (allowed, expected) in _RANGES.items():
        value = getattr(config, name)
        if not allowed(value) and (config.do_sample or name not in _OF_SAMPLING):
            raise InvalidValueError(f"{name}={value:g}: expected {expected}")
    try:
        config.validate()
    except RuntimeError as error:
        raise InvalidValueError(f"generation config: {last_line(error)}") from error
