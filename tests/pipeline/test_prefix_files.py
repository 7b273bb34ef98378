"""A text that was read once is there after another start; files that do not fit are named and ignored."""

from __future__ import annotations

import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openvino_genai import ChatHistory, SchedulerConfig
from prompts import STORY
from safetensors.numpy import load_file, save_file
from settings import F32

import ovspec
import ovspec_ops
from ovspec.pipeline.prefix_files import load_prefix, save_prefix
from ovspec.runner.prefix_file import PrefixFile
from ovspec_ops.loader import set_isa

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
PRECISIONS: dict[str, dict[str, Any]] = {"f32": F32, "default": {}}


def rows_read(pipeline: ovspec.LLMPipeline, inputs: Any) -> tuple[str, int]:
    """The answer, and how many tokens of the prompt were found in the cache."""
    before = pipeline.engine.engine.target.blocks.hits
    text = str(pipeline.generate(inputs, max_new_tokens=12, apply_chat_template=False))
    return text, pipeline.engine.engine.target.blocks.hits - before


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_later_start_has_the_text_read(demo_ir: Path, tmp_path: Path, precision: str) -> None:
    def start() -> ovspec.LLMPipeline:
        pipeline = ovspec.LLMPipeline(demo_ir, "CPU", **PRECISIONS[precision])
        pipeline.get_tokenizer().set_chat_template(TEMPLATE)
        return pipeline

    chat = ChatHistory([{"role": "system", "content": STORY}, {"role": "user", "content": "Go on."}])
    first = start()
    want = [rows_read(first, inputs)[0] for inputs in (STORY + " And then", chat)]
    saved = [
        save_prefix(first, tmp_path / name, STORY, is_system)
        for name, is_system in (("text", False), ("system", True))
    ]
    later = start()
    assert [load_prefix(later, tmp_path / name) for name in ("text", "system")] == saved
    got = [rows_read(later, inputs) for inputs in (STORY + " And then", chat)]
    assert [text for text, _ in got] == want and min(saved) > 64
    assert [hits for _, hits in got] == saved and later.runner.blocks.usage == 0.0


def test_files_that_do_not_fit_are_named_and_change_nothing(demo_ir: Path, tmp_path: Path) -> None:
    pipeline = ovspec.LLMPipeline(demo_ir, "CPU", **F32)
    path = tmp_path / "prefix"
    with pytest.raises(ValueError, match=r"nothing to save: the text has . tokens, a block 32"):
        save_prefix(pipeline, path, "Once", is_system_message=False)
    save_prefix(pipeline, path, STORY, is_system_message=False)
    whole = path.read_bytes()
    pipeline.runner.blocks.forget()

    def refused(pipeline: ovspec.LLMPipeline, message: str) -> None:
        with pytest.raises(ValueError, match=message) as caught:
            load_prefix(pipeline, path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)

    rng = np.random.default_rng(3)
    for at in rng.integers(len(whole) // 2, len(whole), 4):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        refused(pipeline, "is damaged")
    for damaged in (whole[:-5], whole[:100], b""):
        path.write_bytes(damaged)
        refused(pipeline, "is damaged")
    path.unlink()
    refused(pipeline, "No such file")
    assert rows_read(pipeline, STORY)[1] == 0

    path.write_bytes(whole)
    cached = ovspec.LLMPipeline(demo_ir, "CPU", INFERENCE_PRECISION_HINT="f32")
    refused(cached, "saved with KV_CACHE_PRECISION f32, this process has u8: save it again")
    other = tmp_path / "model"
    shutil.copytree(demo_ir, other)
    weights = bytearray((other / "openvino_model.bin").read_bytes())
    weights[len(weights) // 2] ^= 1
    (other / "openvino_model.bin").write_bytes(weights)
    refused(ovspec.LLMPipeline(other, "CPU", **F32), "was saved with another weights than")
    pipeline.runner.limit_cache(None, 2 * pipeline.runner.cache.block_bytes)
    refused(
        pipeline, "more than the prefix cache keeps, 64: raise cache_size .* or --memory-limit, or shorten"
    )


@pytest.mark.slow
def test_what_is_not_saved_has_a_reason(demo_ir: Path, tmp_path: Path) -> None:
    def why(text: str, **options: Any) -> str:
        pipeline = ovspec.LLMPipeline(demo_ir, "CPU", **options, **F32)
        with pytest.raises(ValueError, match="nothing to save: ") as caught:
            save_prefix(pipeline, tmp_path / "prefix", text, is_system_message=False)
        return str(caught.value)

    plan = ovspec.LLMPipeline(demo_ir, "CPU", max_context=800, **F32).memory_plan
    small = {"max_context": 800, "memory_limit": plan.total}
    assert "no room for a block: raise cache_size (of a server: --cache-size) or --mem" in why(STORY, **small)
    config = SchedulerConfig()
    config.enable_prefix_caching = False
    assert "leave enable_prefix_caching on" in why(STORY, scheduler_config=config)
    assert "tokens, a block 128" in why("Once upon a time " * 10, prefill="sparse")


@pytest.fixture
def isa() -> Iterator[str]:
    """The instruction set in use, which a test may change."""
    name = ovspec_ops.active_isa()
    yield name
    set_isa(name)


@pytest.mark.slow
def test_bits_of_another_instruction_set_or_processor(
    demo_ir: Path, tmp_path: Path, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is promised to be identical is not, where other kernels wrote the file."""
    path = tmp_path / "prefix"
    set_isa("plain")
    save_prefix(ovspec.LLMPipeline(demo_ir, "CPU", **F32), path, STORY, is_system_message=False)
    plain = ovspec.LLMPipeline(demo_ir, "CPU", **F32)
    assert load_prefix(plain, path) > 64
    set_isa(isa)
    pipeline = ovspec.LLMPipeline(demo_ir, "CPU", **F32)
    if isa != "plain":
        with pytest.raises(
            ValueError, match=f"saved with instruction set plain, this process has {isa}: sav"
        ):
            load_prefix(pipeline, path)
    save_prefix(pipeline, path, STORY, is_system_message=False)
    monkeypatch.setattr("ovspec.runner.cache_file.processor", lambda device: "another one")
    with pytest.raises(ValueError, match=r"saved with processor .*, this process has another one"):
        load_prefix(pipeline, path)


@pytest.mark.slow
def test_threads_count_where_sums_depend_on_them(demo_ir: Path, tmp_path: Path) -> None:
    path = tmp_path / "prefix"
    for linear, said in (("native", None), ("stock", "saved with number of threads 1, this process has 2")):
        one, two = (
            ovspec.LLMPipeline(demo_ir, "CPU", linear=linear, **{**F32, "INFERENCE_NUM_THREADS": threads})
            for threads in (1, 2)
        )
        save_prefix(one, path, STORY, is_system_message=False)
        if said is None:
            assert load_prefix(two, path) > 64
            continue
        with pytest.raises(ValueError, match=said):
            load_prefix(two, path)


def forged(path: Path, change: Callable[[PrefixFile], PrefixFile]) -> None:
    """Write a file whose checksum is right and whose content is not."""
    change(PrefixFile.read(path)).write(path)


def test_tensors_are_checked_before_blocks_are_taken(demo_ir: Path, tmp_path: Path) -> None:
    pipeline, path = ovspec.LLMPipeline(demo_ir, "CPU", **F32), tmp_path / "prefix"
    save_prefix(pipeline, path, STORY, is_system_message=False)
    whole, spec = path.read_bytes(), pipeline.runner.cache.specs[-1].name
    pipeline.runner.blocks.forget()
    free = pipeline.runner.blocks.num_blocks
    changes: list[tuple[Callable[[PrefixFile], PrefixFile], str]] = [
        (lambda f: replace(f, blocks={n: a for n, a in f.blocks.items() if n != spec}), f"tensor {spec} has"),
        (lambda f: replace(f, blocks={**f.blocks, "more": f.blocks[spec]}), "tensor more has the shape"),
        (lambda f: replace(f, blocks={**f.blocks, spec: f.blocks[spec][:, :-1]}), f"tensor {spec} has"),
        (lambda f: replace(f, blocks={**f.blocks, spec: f.blocks[spec].view(np.int8)}), "is I8 of 2 dim"),
        (lambda f: replace(f, blocks={**f.blocks, spec: f.blocks[spec].ravel()}), "is U8 of 1 dimensions"),
        (lambda f: replace(f, tokens=f.tokens.astype(np.int32)), "token_ids is I32"),
        (lambda f: replace(f, tokens=f.tokens[:-1]), "has the shape"),
        (lambda f: replace(f, made_with={**f.made_with, "later": "yes"}), "later yes, this process has none"),
    ]
    for change, said in changes:
        path.write_bytes(whole)
        forged(path, change)
        with pytest.raises(ValueError, match=said) as caught:
            load_prefix(pipeline, path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    content, known = load_file(path), {"format": "ovspec prefix cache 2"}
    save_file(content, path, known)
    with pytest.raises(ValueError, match=r"another version \('ovspec prefix cache 2'\).*: save it again"):
        load_prefix(pipeline, path)
    assert pipeline.runner.blocks.num_blocks == free and pipeline.runner.blocks.usage == 0.0


@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt()])
def test_blocks_are_given_back(
    demo_ir: Path, tmp_path: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a file can't be read into the cache or written; nothing of a file is left then."""
    pipeline, path = ovspec.LLMPipeline(demo_ir, "CPU", **F32), tmp_path / "prefix"
    save_prefix(pipeline, path, STORY, is_system_message=False)
    blocks, cache = pipeline.runner.blocks, pipeline.runner.cache
    blocks.forget()

    def failing(*arguments: Any) -> Any:
        raise error

    monkeypatch.setattr(cache, "write", failing)
    with pytest.raises(type(error)):
        load_prefix(pipeline, path)
    assert blocks.usage == 0.0 and rows_read(pipeline, STORY + " And then")[1] == 0
    monkeypatch.setattr(cache, "read", failing)
    with pytest.raises(type(error)):
        save_prefix(pipeline, tmp_path / "other", STORY, is_system_message=False)
    assert blocks.usage == 0.0 and list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_no_part_of_a_file(demo_ir: Path, tmp_path: Path) -> None:
    """RLIMIT_FSIZE ends a write as a full disk does."""
    pipeline, path = ovspec.LLMPipeline(demo_ir, "CPU", **F32), tmp_path / "prefix"
    path.write_bytes(b"before")
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        with pytest.raises(OSError, match=f"File too large: '{path}'"):
            save_prefix(pipeline, path, STORY, is_system_message=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == b"before"
    assert pipeline.runner.blocks.usage == 0.0


def test_a_file_is_read_and_written_alone(demo_ir: Path, tmp_path: Path) -> None:
    """The cache that a pass of another call uses must not change below it."""
    pipeline, path = ovspec.LLMPipeline(demo_ir, "CPU", **F32), tmp_path / "prefix"
    save_prefix(pipeline, path, STORY, is_system_message=False)
    refused: list[str] = []

    def streamer(_: str) -> None:
        with ThreadPoolExecutor(1) as other:
            for call in (
                lambda: load_prefix(pipeline, path),
                lambda: save_prefix(pipeline, path, STORY, is_system_message=False),
            ):
                refused.append(str(other.submit(call).exception()))

    pipeline.generate("Once upon a time", max_new_tokens=2, streamer=streamer)
    assert refused and all("busy with generate" in message for message in refused)
