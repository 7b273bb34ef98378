"""A cache that grows: what it held before goes back to the system."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import openvino as ov
import pytest
from commands import command
from numpy.typing import NDArray
from settings import F32

from ovspec.cache.cache import CachedSequence, CacheTensor, KVCache
from ovspec.cache.cache_memory import HostBlocks
from ovspec.operations.tree_limits import why_rows_stay
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner

# Runs in its own process. Whoever frees a large block, as OpenVINO does between two passes, makes glibc keep
# all that is freed up to that size.
CODE = """
import ctypes
from pathlib import Path
import numpy as np, openvino as ov
from openvino import opset15 as ops
from ovspec.cache.cache import CacheTensor, KVCache

def held():
    pages = Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]
    return int(pages) * 1024

c = ctypes.CDLL(None)
c.malloc.restype, c.malloc.argtypes, c.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
c.free(c.malloc(31 << 20))
names = [f"key_cache.{number}" for number in range(8)]
inputs = [ops.parameter([-1, 32, 1024], np.uint8, name) for name in names]
for name, node in zip(names, inputs):
    node.output(0).set_names({name})
model = ov.Model([ops.shape_of(node) for node in inputs], inputs)
request = ov.Core().compile_model(model, "CPU").create_infer_request()
cache = KVCache(request, [CacheTensor(name, ov.Type.u8, (32, 1024)) for name in names])
cache.ensure(128)
for name in names:
    cache.write(name, np.arange(128), np.ones((128, 32 * 1024), np.uint8))
before = held()
cache.ensure(256)
print((held() - before) / (128 * 32 * 1024))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_what_a_cache_held_before_it_grew_is_returned() -> None:
    """Pages of 2 MB make each of the eight tensors half of its 4 MB larger at most."""
    done = command(sys.executable, "-c", CODE, timeout=None)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 4.5, "tensors of the size before that stayed"


def test_a_cache_that_cannot_grow_says_what_it_has_room_for() -> None:
    def small(element_type: ov.Type, shape: list[int]) -> HostBlocks:
        if shape[0] > 64:
            raise MemoryError
        return HostBlocks(element_type, shape)

    cache = KVCache(Mock(model_inputs=[]), [CacheTensor("value_cache.0", ov.Type.f32, (2, 16, 8))], small)
    cache.ensure(3)
    with pytest.raises(RuntimeError, match="room for 1024 tokens of all texts"):
        cache.ensure(65)


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_passes_go_on_where_a_cache_could_not_grow(
    demo_ir: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """Memory ends at one of the tensors; those that had grown have as many blocks as the others again."""
    runner = ModelRunner(demo_ir / "draft", properties=F32)
    room = len(runner.cache.specs) + failing - 1

    def small(element_type: ov.Type, shape: list[int]) -> HostBlocks:
        nonlocal room
        if room == 0:
            raise MemoryError
        room -= 1
        return HostBlocks(element_type, shape)

    monkeypatch.setattr(runner.cache, "_new_blocks", small)

    def logits() -> list[NDArray[np.float32]]:
        sequence = CachedSequence()
        found = [np.array(runner.forward([Rows(sequence, np.array([token]))]).logits) for token in range(40)]
        runner.release(sequence)
        return found

    before = logits()
    with pytest.raises(RuntimeError, match="room for 2048 tokens of all texts"):
        runner.cache.ensure(65)
    np.testing.assert_array_equal(logits(), before)
    room = len(runner.cache.specs)
    runner.cache.ensure(65)
    assert runner.cache.capacity == 128
    np.testing.assert_array_equal(logits(), before)


def test_a_cache_grows_once_for_what_is_needed_soon() -> None:
    sizes: list[int] = []

    def counted(element_type: ov.Type, shape: list[int]) -> HostBlocks:
        sizes.append(shape[0])
        return HostBlocks(element_type, shape)

    spec = CacheTensor("value_cache.0", ov.Type.f32, (2, 16, 8))
    cache = KVCache(Mock(model_inputs=[]), [spec], counted)
    for needed in (16, 200, 500):
        cache.ensure(needed, soon=500)
    cache.ensure(532)  # an answer of 1,024 tokens
    assert sizes == [532]
    cache = KVCache(Mock(model_inputs=[]), [spec], counted)
    cache.max_bytes = 300 * cache.block_bytes
    cache.ensure(16, soon=500)
    assert sizes == [532, 300], "no more than the limit"


@pytest.mark.parametrize(
    ("block", "shares", "reason"),
    [
        ((2, 64, 16), False, ""),
        ((2, 68, 16), False, "a GPU keeps their scales apart"),
        ((2, 64, 20), True, "a GPU keeps their scales apart"),
    ],
    ids=str,
)
def test_scales_of_a_gpu_do_not_move_with_their_token(
    block: tuple[int, ...], shares: bool, reason: str
) -> None:
    element_type = ov.Type.u8 if reason else ov.Type.f16
    cache = KVCache(Mock(model_inputs=[]), [CacheTensor("key_cache.0", element_type, block)], key_axis=2)
    assert cache.shares_scales(16) == shares
    found = why_rows_stay(cache, 16)
    assert reason in found and bool(found) == bool(reason)
