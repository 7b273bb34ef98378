"""Sparse prompts: what an answer depends on, and what it may share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine.test_llm_engine import settings_of
from numpy.typing import NDArray
from prompts import STORY
from settings import F32

import ovspec
from ovspec.cache.cache import CachedSequence
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.requests.request import Request, RequestMetrics
from ovspec.modes.commit_verify import CommitVerify
from ovspec.modes.sparse_prefill import SparsePrefill
from ovspec.operations.attention_config import AttentionConfig
from ovspec.passes.tables import Rows
from ovspec.pipeline.prefix_files import load_prefix, save_prefix
from ovspec.runner.model_runner import ModelRunner
from ovspec_models.folder.sparse_verify import SparseVerify

TIGHT = SparsePrefill(L0=128, rho=0.1)


@pytest.fixture(scope="module")
def runner(demo_ir: Path) -> ModelRunner:
    return ModelRunner(demo_ir, attention=AttentionConfig("native", True, prefill=TIGHT), properties=F32)


@pytest.fixture(scope="module")
def text(demo_ir: Path) -> list[int]:
    tokenizer = ovspec.LLMPipeline(demo_ir, "CPU", **F32).get_tokenizer()
    return [int(token) for token in tokenizer.encode(STORY * 2).input_ids.data.reshape(-1)]


@pytest.fixture
def reading(runner: ModelRunner) -> Iterator[Any]:
    """Set how the runner reads prompts; afterwards it reads them as before."""

    def set_anew(prefill: SparsePrefill | None) -> ModelRunner:
        runner.attention = replace(runner.attention, prefill=prefill)
        return runner

    yield set_anew
    set_anew(TIGHT)


def requests(text: list[int]) -> list[Request]:
    """Prompts that end within a block, at a piece, behind 64 rows of one, and that begin alike."""
    ends = ((0, 700), (0, 512), (40, 600), (0, 590), (0, 90), (128, 650))
    prompts = [text[begin:end] for begin, end in ends]
    return [Request(str(n), prompt, settings_of(max_new_tokens=12)) for n, prompt in enumerate(prompts)]


def engine_of(runner: ModelRunner, chunk: int = 128, prefixes: int = 0, **options: Any) -> LLMEngine:
    return LLMEngine(runner, None, "dense", chunk, prefix_cache_bytes=prefixes, **options)


@pytest.fixture(scope="module")
def alone(runner: ModelRunner, text: list[int]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for request in requests(text):
        found |= engine_of(runner).generate([request])
    return found


@pytest.mark.parametrize(("chunk", "prefixes"), [(200, 0), (4096, 0), (300, 2**30)])
def test_answers_depend_neither_on_chunks_nor_on_companions_nor_on_the_cache(
    runner: ModelRunner, text: list[int], alone: dict[str, list[int]], chunk: int, prefixes: int
) -> None:
    engine = engine_of(runner, chunk, prefixes)
    for _ in range(2):
        assert engine.generate(requests(text)) == alone
    assert (engine.target.blocks.hits > 0) == (prefixes > 0)
    runner.blocks.limit(None, 0)


def test_a_preempted_request_is_read_again_as_it_was(runner: ModelRunner, text: list[int]) -> None:
    """The prompt sparsely, the answer densely. There is room for the prompts of 10 blocks, and for 2 more."""

    def growing() -> list[Request]:
        prompts = [text[10 * n : 10 * n + 300] for n in range(4)]
        return [Request(str(n), prompt, settings_of(max_new_tokens=48)) for n, prompt in enumerate(prompts)]

    want: dict[str, list[int]] = {}
    for request in growing():
        want |= engine_of(runner).generate([request])
    engine = engine_of(runner, 256, 2**30, cache_bytes=42 * runner.cache.block_bytes, max_num_seqs=4)
    got: dict[str, list[int]] = {}
    for request in growing():
        engine.add_request(request)
    while engine.has_unfinished_requests:
        for output in engine.step():
            got.setdefault(output.request_id, []).extend(output.token_ids)
            assert output.metrics.num_cached_tokens == 0  # what it finds again is its own
    assert got == want
    assert engine.num_preemptions > 0 and engine.target.blocks.hits > 0
    runner.limit_cache(None, 0)


def test_sparse_answers_differ_from_dense_ones_and_say_so(
    reading: Any, text: list[int], alone: dict[str, list[int]]
) -> None:
    def metrics(prefill: SparsePrefill | None) -> tuple[list[int], RequestMetrics]:
        engine, tokens = engine_of(reading(prefill)), list[int]()
        engine.add_request(requests(text)[0])
        while engine.has_unfinished_requests:
            for output in engine.step():
                tokens += output.token_ids
        return tokens, output.metrics

    sparse, found = metrics(TIGHT)
    dense, whole = metrics(None)
    assert sparse == alone["0"]
    assert found.is_lossy and 0 < found.prefill_density < 0.8 and found.attention_density == 1.0
    assert not whole.is_lossy and whole.prefill_density == 1.0
    for covering in (SparsePrefill(L0=8192), SparsePrefill(coverage=1.0)):
        assert metrics(covering) == (dense, whole)


def logits(runner: ModelRunner, text: list[int], is_prompt: bool = True) -> NDArray[np.float32]:
    """Of every row of a prompt."""
    sequence, tokens = CachedSequence(), np.array(text[:640], np.int64)
    found = [
        runner.forward([Rows(sequence, part, sampled=len(part), is_prompt=is_prompt)]).logits.copy()
        for part in np.split(tokens, [384])
    ]
    runner.release(sequence)
    return np.concatenate(found)


def test_lists_of_nearly_all_blocks_give_nearly_the_dense_rows(reading: Any, text: list[int]) -> None:
    dense = logits(reading(None), text)
    nearly = logits(reading(SparsePrefill(coverage=1.0 - 1e-6)), text)
    few = logits(reading(TIGHT), text)
    np.testing.assert_allclose(nearly, dense, atol=0.05)
    assert np.array_equal(few[:128], dense[:128]) and np.abs(few[256:] - dense[256:]).max() > 1.0


def test_rows_that_are_no_prompt_are_dense(reading: Any, text: list[int]) -> None:
    assert np.array_equal(logits(reading(TIGHT), text, is_prompt=False), logits(reading(None), text))


@pytest.mark.parametrize("other", [None, SparsePrefill(L0=128, rho=0.2), SparsePrefill(coverage=0.9)])
def test_blocks_are_shared_by_equal_settings_only(
    reading: Any, text: list[int], other: SparsePrefill | None
) -> None:
    engine = engine_of(reading(TIGHT), prefixes=2**30)
    engine.generate(requests(text)[:1])
    found = {}
    for prefill in (other, TIGHT):
        sequence = CachedSequence()
        found[prefill] = reading(prefill).share(sequence, text[:700])
        engine.target.release(sequence)
    assert found == {other: 0, TIGHT: 640}
    sequence = CachedSequence()
    # A piece is taken whole or not at all: its blocks have lists of all its rows.
    assert reading(TIGHT).share(sequence, text[:600]) == 512
    engine.target.release(sequence)
    engine.target.blocks.limit(None, 0)


def test_a_file_of_a_prefix_is_for_one_setting(demo_ir: Path, tmp_path: Path) -> None:
    def start(prefill: SparsePrefill | str) -> ovspec.LLMPipeline:
        return ovspec.LLMPipeline(demo_ir, "CPU", prefill=prefill, **F32)

    first = start(TIGHT)
    want = first.generate(STORY + " And then", max_new_tokens=12, apply_chat_template=False)
    saved = save_prefix(first, tmp_path / "file", STORY, False)
    later = start(TIGHT)
    assert load_prefix(later, tmp_path / "file") == saved and saved % 128 == 0 and saved > 0
    got = later.generate([STORY + " And then"], max_new_tokens=12, apply_chat_template=False)
    assert got.texts == [want] and "sparse prefill" in got.perf_metrics.why_lossy
    for other in ("dense", SparsePrefill(L0=256)):
        with pytest.raises(ValueError, match=r"was saved with (attention|prefill)"):
            load_prefix(start(other), tmp_path / "file")


def test_what_sparse_prompts_do_not_go_with_is_refused(demo_ir: Path) -> None:
    for options, message in (
        ({"verify": "commit"}, "the cache of a sparse prompt is not the dense one"),
        ({"attention": "stock"}, "prefill='sparse' needs attention='native'"),
        ({"max_num_batched_tokens": 64}, "max_num_batched_tokens=64: prefill='sparse' reads"),
    ):
        with pytest.raises(ValueError, match=message):
            ovspec.LLMPipeline(demo_ir, "CPU", prefill="sparse", **options, **F32)
    with pytest.raises(ValueError, match="prefill='some': expected 'dense', 'sparse'"):
        ovspec.LLMPipeline(demo_ir, "CPU", prefill="some", **F32)
    pipeline = ovspec.LLMPipeline(demo_ir, "CPU", prefill=TIGHT, verify=SparseVerify(budget=256), **F32)
    with pytest.raises(ValueError, match="not the dense one"):
        pipeline.verify = CommitVerify()
    pipeline.verify = SparseVerify(budget=512)
    results = pipeline.generate([STORY], max_new_tokens=4, apply_chat_template=False)
    reasons = results.perf_metrics.why_lossy
    assert "sparse verification" in reasons and "sparse prefill" in reasons
    assert results.perf_metrics.get_prefill_density() < 1.0
    short = pipeline.generate(["Once"], max_new_tokens=4, apply_chat_template=False)
    assert short.perf_metrics.why_lossy == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"L0": -1}, "prefill: L0=-1: expected a number of tokens of at least 0"),
        ({"L0": 1.5}, "prefill: L0=1.5: expected a whole number"),
        ({"rho": 2.0}, "prefill: rho=2.0: expected a share between 0 and 1"),
        ({"coverage": 0.0}, "prefill: coverage=0.0: expected a share above 0"),
        ({"coverage": 0.9, "rho": 0.1}, "prefill: coverage=0.9 contradicts rho=0.1"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SparsePrefill(**options)
