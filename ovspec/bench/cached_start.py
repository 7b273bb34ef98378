"""Starts from a compiled model in CACHE_DIR."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

# Starts by name: the engine and its properties. OpenVINO GenAI reads back only the models of its SDPA
# backend; its default backend, paged attention, is compiled at every start.
CACHED_STARTS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "openvino_genai, paged": ("openvino_genai", {"ATTENTION_BACKEND": "PA"}),
    "openvino_genai, SDPA": ("openvino_genai", {"ATTENTION_BACKEND": "SDPA"}),
    "ovspec": ("ovspec", {}),
}


@dataclass(frozen=True, slots=True)
class CachedStart:
    """Medians of the starts of one engine, without the first start, which fills the folder.

    Attributes:
        name: in `CACHED_STARTS`.
        start_s: seconds from the folder to a pipeline.
        start_cpu_s: processor time of the start in seconds.
        first_token_s: seconds from the start to the first token after a prompt of one token.
        anon_bytes: anonymous resident memory (RssAnon) of the process after the first token.
    """

    name: str
    start_s: float
    start_cpu_s: float
    first_token_s: float
    anon_bytes: int

    def as_json(self) -> dict[str, Any]:
        """The record as a JSON object."""
        return asdict(self)


def cached_ratio(starts: list[CachedStart]) -> float:
    """Processor time of ovspec's start divided by that of the fastest other."""
    cpu = {start.name: start.start_cpu_s for start in starts}
    ours = cpu.pop("ovspec")
    return ours / min(cpu.values())
