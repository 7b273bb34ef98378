"""Starts from a compiled model that an earlier start has left in CACHE_DIR."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

# What starts from CACHE_DIR: an engine, and what it is asked for. OpenVINO GenAI reads only what its SDPA
# backend has left there; its default, paged attention, is compiled at every start.
CACHED_STARTS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "openvino_genai, paged": ("openvino_genai", {"ATTENTION_BACKEND": "PA"}),
    "openvino_genai, SDPA": ("openvino_genai", {"ATTENTION_BACKEND": "SDPA"}),
    "ovspec": ("ovspec", {}),
}


@dataclass(frozen=True, slots=True)
class CachedStart:
    """Medians of the starts of one engine, the first of which, that fills the folder, does not count.

    Attributes:
        name: in `CACHED_STARTS`.
        start_s: seconds from the folder to a pipeline.
        start_cpu_s: seconds of processor time of that.
        first_token_s: seconds from there to the first token behind one.
        anon_bytes: anonymous resident memory (RssAnon) of the process then.
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
    """Processor time of ours against that of the quickest other."""
    cpu = {start.name: start.start_cpu_s for start in starts}
    ours = cpu.pop("ovspec")
    return ours / min(cpu.values())
