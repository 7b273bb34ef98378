"""A text that was read once is there after another start; files that do not fit are named and ignored."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openvino_genai import ChatHistory
from prompts import STORY
from settings import F32

import ovspec
from ovspec.pipeline.prefix_files import load_prefix, save_prefix

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
    refused(ovspec.LLMPipeline(demo_ir, "CPU"), "was made with another (setting|cache layout)")
    other = tmp_path / "model"
    shutil.copytree(demo_ir, other)
    weights = bytearray((other / "openvino_model.bin").read_bytes())
    weights[len(weights) // 2] ^= 1
    (other / "openvino_model.bin").write_bytes(weights)
    refused(ovspec.LLMPipeline(other, "CPU", **F32), "was made with another weights")
    pipeline.runner.limit_cache(None, 2 * pipeline.runner.cache.block_bytes)
    refused(pipeline, "more than the prefix cache keeps")


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
