"""Fields of openvino_genai's configurations, and errors that name them."""

from __future__ import annotations

from typing import Any

import openvino_genai

from ovspec.errors import InvalidValueError
from ovspec_models.folder.shown import shown

SEE = "see openvino_genai.GenerationConfig"


def fields_of(config: object) -> list[str]:
    """Names of the settings that an object of openvino_genai holds."""
    return [name for name in dir(config) if not name.startswith("_") and not callable(getattr(config, name))]


def assign(config: openvino_genai.GenerationConfig, name: str, value: Any) -> None:
    """Set a field; a list of texts or ids will do where the field is a set.

    Raises:
        InvalidValueError: the configuration has no such field, or the value is of another type.
    """
    if name not in fields_of(config):
        hint = "ovspec.VLMPipeline reads pictures" if name in ("image", "images") else SEE
        raise InvalidValueError(f"{name}={shown(value)}: generate has no such option; {hint}")
    try:
        setattr(config, name, _as_set(value) if name in ("stop_strings", "stop_token_ids") else value)
    except TypeError as error:
        raise InvalidValueError(f"{name}={shown(value)}: expected {_expected(name)}") from error


def _expected(name: str) -> str:
    """What a field takes, in words."""
    if name == "eos_token_id":
        return "a token id, or -1 for the model's own"
    default = getattr(openvino_genai.GenerationConfig(), name)
    if isinstance(default, bool):
        return "True or False"
    if name == "stop_token_ids":
        return "a set of token ids"
    if name == "stop_strings":
        return "a set of texts"
    if isinstance(default, float):
        return "a number"
    if isinstance(default, int) or name == "num_assistant_tokens":
        return "a whole number from 0 to 2**64 - 1"
    return "an object of openvino_genai's"


def _as_set(value: Any) -> set[Any]:
    # A single str is one stop string, as in openvino_genai, and not a sequence of characters.
    return {value} if isinstance(value, str) else set(value)
