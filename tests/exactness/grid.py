"""The cases of the row proof: families, weight formats, precisions, caches and instruction sets."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from tiny_checkpoints import TINY

from ovspec.operations.backends import Backends
from ovspec.operations.expert_budgets import ExpertConfig
from ovspec.operations.row_rounding import arithmetic
from ovspec.proofs.row_check import random_text
from ovspec.proofs.row_invariance import RowProof
from ovspec.runner.model_runner import ModelRunner
from ovspec_ops import loader
from ovspec_ops.common.byte_values import ISAS as BYTE_ISAS

PRECISIONS: dict[str, dict[str, str]] = {
    "default": {},
    "f32": {"INFERENCE_PRECISION_HINT": "f32"},
    "bf16": {"INFERENCE_PRECISION_HINT": "bf16"},
}
WEIGHTS = ("fp32", "fp16", "int8", "int4")
FLOATS = ("fp32", "fp16")
CACHES = ("u8", "f16", "bf16", "f32")
#: The instruction set whose rounding of rows each of the tests' own instruction sets imitates.
EMULATED = {"avx2dot": "avx2vnni", "avx512tiles": "amx", "avx2x16": "avx512"}
#: Attention of ours has no ALiBi, and two families lose it in the plugin's own: none makes a promise.
NOT_SERVED = ("Bloom", "MPT", "Falcon, ALiBi")
FAMILIES = [name for name in TINY if name not in NOT_SERVED]
#: Of which nothing is promised: docs/families.md says that their experts stay OpenVINO's nodes.
STOCK_EXPERTS = ("Gemma 4, experts", "Llama 4")
#: Absent shared experts are exported with rows of one number, which have no form of 4 bits.
NOT_IN_INT4 = ("AFMoE, no shared experts",)
SPLITS = 30


def formats_of(family: str) -> list[tuple[str, str, str]]:
    """Weight formats, precisions and caches that a family is proved with.

    Those of u8 caches, which people run, all; another cache with each precision and one weight format, the
    next one for the next family. Attention knows nothing of the weights, and products nothing of the cache.
    """
    first = FAMILIES.index(family)
    weights = [one for one in WEIGHTS if one != "int4" or family not in NOT_IN_INT4]
    return [
        (weight, precision, cache)
        for place, cache in enumerate(CACHES)
        for weight in (weights if cache == "u8" else [weights[(first + place) % len(weights)]])
        for precision in PRECISIONS
    ]


@dataclass(frozen=True, slots=True)
class Case:
    """One model of the grid and how it is computed."""

    family: str
    weights: str
    precision: str
    cache: str
    isa: str

    def __str__(self) -> str:
        return f"{self.family}-{self.weights}-{self.precision}-{self.cache}-{self.isa}"

    @property
    def properties(self) -> dict[str, Any]:
        """OpenVINO's properties of the case."""
        return {
            **PRECISIONS[self.precision], "KV_CACHE_PRECISION": self.cache, "INFERENCE_NUM_THREADS": 1,
        }  # fmt: skip

    def runner(self, model: Path | ov.Model, **options: Any) -> ModelRunner:
        """The model as a pipeline runs it by default.

        Where the instruction set is an emulated one, rows are rounded to 8 bits as on the processor that it
        stands for; where the plugin lacks bf16, products of floating-point weights take ours.

        Raises:
            ValueError: the plugin refuses the pair of precisions.
        """
        backends = Backends.resolve(model, "CPU", self.properties, experts=ExpertConfig(optional=True))
        if EMULATED.get(self.isa) in BYTE_ISAS:
            backends = replace(backends, row_bits=8)
        if self.precision == "bf16":
            backends = replace(backends, arithmetic="bf16")
        return ModelRunner(model, backends=backends, **options)

    @property
    def computed(self) -> Case:
        """The case that computes the same graph, by the name of what the plugin makes of the precision."""
        plugin = _of_the_plugin(self.precision)
        ours = "bf16" if self.precision == "bf16" and self.weights in FLOATS else plugin
        return replace(self, precision=plugin) if ours == plugin else self


@functools.cache
def _of_the_plugin(precision: str) -> str:
    return arithmetic(PRECISIONS[precision])


@contextmanager
def instruction_set(name: str) -> Iterator[None]:
    """Compute with another instruction set for a while."""
    before = loader.active_isa()
    loader.set_isa(name)
    try:
        yield
    finally:
        loader.set_isa(before)


def prove(runner: ModelRunner, text: NDArray[np.int64], splits: int, largest_chunk: int = 140) -> RowProof:
    """Assert that every split gives the bits of one row a pass."""
    proof = RowProof(runner, text)
    logits = proof.reference.outputs["logits"]
    assert np.isfinite(logits).all() and logits.std() > 0.1
    for seed in range(splits):
        difference = proof.difference(seed, largest_chunk)
        assert difference is None, f"split {seed}: {difference}"
    return proof


def text_of(case: Case, tokens: int = 80) -> NDArray[np.int64]:
    """The text of a case: longer than the windows of the tiny families."""
    return random_text(TINY[case.family].sizes["vocab_size"], tokens)
