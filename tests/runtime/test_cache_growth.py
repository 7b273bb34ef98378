"""A cache that grows: what it held before goes back to the system."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from commands import command

# Runs in its own process. Whoever frees a large block, as OpenVINO does between two passes, makes glibc keep
# all that is freed up to that size.
CODE = """
import ctypes
from pathlib import Path
import numpy as np, openvino as ov
from openvino import opset15 as ops
from ovspec.runtime.cache import CacheTensor, KVCache

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
