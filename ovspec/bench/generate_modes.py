"""The modes of `ovspec bench generate`: names of pipelines and what they are asked for."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ovspec.drafters import NAMES, Assistant, Auto
from ovspec.modes.row_limits import MAX_NUM_ASSISTANT_TOKENS

PLAIN = "plain"
# Modes of OpenVINO GenAI: its two backends, and its prompt lookup with the numbers of its documentation.
GENAI: Mapping[str, Mapping[str, Any]] = {
    "genai": {"ATTENTION_BACKEND": "PA"},
    "genai_sdpa": {"ATTENTION_BACKEND": "SDPA"},
    "genai_lookup": {"prompt_lookup": True},
}
GENAI_PLAIN = ("genai", "genai_sdpa")
_GENAI_LOOKUP = {"num_assistant_tokens": 5, "max_ngram_size": 3}
_VERIFY = ("sparse", "commit")
_DRAFTERS = {"lookup": "prompt_lookup", **{name: name for name in NAMES}}
_TAKE_MODEL = ("default", Assistant.name, Auto.name)
_NUMBERED = (*_DRAFTERS, "genai_lookup")
KNOWN = ("default", PLAIN, *_DRAFTERS, *_VERIFY, *GENAI)
DEFAULT_MODES = ("genai", "genai_lookup", PLAIN, "lookup:4", "suffix", "auto")


@dataclass(frozen=True, slots=True)
class Mode:
    """A pipeline, and how it is called.

    Attributes:
        name: as it was given.
        engine: "ovspec" or "genai".
        arguments: of the pipeline's class.
        config: of every call.
        python: that runs it; another one than ours runs the ovspec that it finds.
    """

    name: str
    engine: str
    arguments: Mapping[str, Any]
    config: Mapping[str, Any]
    python: str

    @property
    def is_lossy(self) -> bool:
        """Whether its answers may differ from those of plain decoding."""
        return self.arguments.get("verify") == "sparse"

    @classmethod
    def of(cls, text: str, draft_model: Path | None, properties: Mapping[str, Any]) -> Mode:
        """The mode of a name: `VERIFY+DRAFTER:TOKENS@PYTHON`, each part of which may be missing.

        Raises:
            ValueError: it is none.
        """
        described, at, python = text.partition("@")
        verify, plus, drafter = described.rpartition("+")
        if described in _VERIFY:
            verify, plus, drafter = described, "+", "default"
        name, colon, number = drafter.partition(":")
        known = ("default", PLAIN, *_DRAFTERS, *(() if plus else GENAI))
        if name not in known or (plus and verify not in _VERIFY) or (colon and name not in _NUMBERED):
            raise ValueError(
                f"--mode {text}: expected some of {', '.join(KNOWN)}; a drafter takes a number of tokens, as "
                "in lookup:4, and sparse and commit a drafter, as in commit+suffix"
            )
        config: dict[str, Any] = dict(_GENAI_LOOKUP) if name == "genai_lookup" else {}
        if colon:
            config["num_assistant_tokens"] = _number(text, number)
        program = _program(text, python) if at else sys.executable
        if name in GENAI:
            return cls(text, "genai", {**GENAI[name], **properties}, config, program)
        arguments: dict[str, Any] = {**({"verify": verify} if plus else {}), **properties}
        if name != "default":
            arguments["drafter"] = _DRAFTERS.get(name, "none")
        if name == Assistant.name and draft_model is None:
            raise ValueError(f"--mode {text} needs a draft model: give --draft-model DIR")
        if draft_model is not None and name in _TAKE_MODEL:
            arguments["draft_model"] = str(draft_model)
        return cls(text, "ovspec", arguments, config, program)


def _number(mode: str, text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_NUM_ASSISTANT_TOKENS:
        raise ValueError(
            f"--mode {mode}: {text!r} draft tokens; expected a number from 1 to {MAX_NUM_ASSISTANT_TOKENS}"
        )
    return int(text)


def _program(mode: str, name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise ValueError(
            f"--mode {mode}: {name!r} can't be run; name a Python, or a script that starts one with its "
            "arguments"
        )
    return str(Path(found).absolute())
