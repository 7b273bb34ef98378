"""Texts at default precision equal plain decoding's.

With every drafter, with other requests in the pass, and with prompts read in parts.

Two targets: the demo's, and a Llama of 2.5 million random parameters, whose flat logits turn any difference
of a bit into another token.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_once import MakeOnce
from prompts import PROMPTS, STORY
from tiers import by_tier
from tiny_checkpoints import TINY, Tiny, write_checkpoint

import ovspec
from ovspec import CommitVerify, SparseVerify
from ovspec.drafters import SparseSelf
from ovspec_models import demo_pair_path

TOKENS = 32
SPARSE = SparseVerify(budget=64)
#: Arguments of the pipeline, and of a call.
MODES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({"drafter": "none"}, {}),
    "assistant": ({"draft": True}, {"num_assistant_tokens": 5}),
    "prompt_lookup": ({"drafter": "prompt_lookup"}, {"num_assistant_tokens": 5, "max_ngram_size": 3}),
    "suffix": ({"drafter": "suffix"}, {"num_assistant_tokens": 7}),
    "sparse_self": ({"drafter": SparseSelf(SPARSE)}, {"num_assistant_tokens": 4}),
    "commit": ({"draft": True, "verify": CommitVerify(SPARSE, 16)}, {"num_assistant_tokens": 4}),
}
#: Sequences in a pass, and rows of a pass while prompts are read.
READINGS = [(1, 512), (4, 512), (4, 16), (4, 100)]
SAMPLING: dict[str, Any] = {"do_sample": True, "temperature": 0.9, "top_p": 0.95, "rng_seed": 11}
COUNTS = [8, pytest.param(200, marks=pytest.mark.sweep)]
LLAMA = Tiny(
    "LlamaConfig",
    {
        **TINY["Llama"].sizes,
        "hidden_size": 256, "intermediate_size": 704, "max_position_embeddings": 2048,
        "tie_word_embeddings": True, "initializer_range": 0.08,
    },
)  # fmt: skip


def export_llama(folder: Path) -> None:
    """The random Llama in int8, and in int4 as its own draft."""
    from ovspec_models import export_model

    checkpoint = write_checkpoint(LLAMA, folder / "checkpoint")
    export_model(checkpoint, folder / "target", weight_format="int8")
    export_model(checkpoint, folder / "draft", weight_format="int4", group_size=32)


Folders = Callable[[str], tuple[Path, Path]]


@pytest.fixture(scope="module")
def folders(make_once: MakeOnce) -> Folders:
    """Target and draft by name."""

    def get(name: str) -> tuple[Path, Path]:
        if name == "demo":
            return demo_pair_path(), demo_pair_path() / "draft"
        pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")
        made = make_once("llama of 2.5 M", export_llama)
        return made / "target", made / "draft"

    return get


def prompts(count: int) -> list[str]:
    """Beginnings of texts; every fourth follows a part of a story that is longer than a chunk."""
    parts = [STORY[20 * n : 20 * n + 500] + "\n" if n % 4 == 3 else "" for n in range(count)]
    return [part + opening for part, opening in zip(parts, PROMPTS[:count], strict=True)]


def pipeline(folders: tuple[Path, Path], mode: str, chunk: int = 512) -> ovspec.LLMPipeline:
    made = dict(MODES[mode][0])
    if made.pop("draft", False):
        made |= {"draft_model": ovspec.draft_model(folders[1]), "drafter": "assistant"}
    return ovspec.LLMPipeline(folders[0], "CPU", max_num_batched_tokens=chunk, **made)


def texts(
    folders: tuple[Path, Path], mode: str, together: int, chunk: int, count: int, **asked: Any
) -> list[str]:
    """What a mode generates for the prompts, so many of them in a call."""
    made, found, asked = pipeline(folders, mode, chunk), list[str](), {**MODES[mode][1], **asked}
    for first in range(0, count, together):
        some = prompts(count)[first : first + together]
        found += made.generate(some, max_new_tokens=TOKENS, ignore_eos=True, **asked).texts
    return found


@functools.cache
def plain(folders: tuple[Path, Path], count: int, sampled: bool = False) -> list[str]:
    """What plain decoding gives for every prompt alone, read in one chunk."""
    found = texts(folders, "plain", 1, 512, count, **(SAMPLING if sampled else {}))
    assert len(set(found)) > count // 2
    return found


def differing(got: list[str], expected: list[str]) -> list[int]:
    return [n for n, (a, b) in enumerate(zip(got, expected, strict=True)) if a != b]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("mode", by_tier(MODES, ("commit",)))
@pytest.mark.parametrize("model", ["demo", pytest.param("llama", marks=pytest.mark.slow)])
def test_greedy_texts(folders: Folders, model: str, mode: str, count: int) -> None:
    pair = folders(model)
    quick = READINGS if count > 8 else [(1, 512), (4, 16)]
    for together, chunk in quick:
        if (mode, together, chunk) != ("plain", 1, 512):
            got = texts(pair, mode, together, chunk, count)
            assert differing(got, plain(pair, count)) == [], f"{together} together, chunks of {chunk}"


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("mode", by_tier(MODES, ("plain", "sparse_self")))
def test_a_seed_gives_the_text_of_plain_decoding(folders: Folders, mode: str, count: int) -> None:
    pair = folders("demo")
    assert differing(plain(pair, count, sampled=True), plain(pair, count)) != []
    got = texts(pair, mode, 4, 100, count, **SAMPLING)
    assert differing(got, plain(pair, count, sampled=True)) == []
