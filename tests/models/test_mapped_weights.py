"""Pages of a weight file are given back while its weights are compressed, and nothing else changes."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from ovspec_models.mapped_weights import release_pages, released_when_compressed

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="reads Linux's /proc")

MATRICES, SIDE = 4, 512
MATRIX_BYTES = SIDE * SIDE * 4


def resident(file: Path) -> int:
    """Return the bytes of `file` that are resident in this process."""
    blocks = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    return sum(
        int(re.search(r"^Rss:\s+(\d+) kB", block, re.MULTILINE)[1]) * 1024
        for block in blocks
        if block.splitlines()[0].endswith(f" {file}")
    )


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """The `.bin` of an IR of 4 matrices `[512, 512]` f32."""
    rng = np.random.default_rng(1)
    tokens = ops.parameter([1, SIDE], np.float32)
    out = tokens
    for _ in range(MATRICES):
        out = ops.matmul(out, ops.constant(rng.standard_normal((SIDE, SIDE), np.float32)), False, True)
    ov.save_model(ov.Model([out], [tokens]), tmp_path / "m.xml", compress_to_fp16=False)
    return tmp_path / "m.bin"


def compressed_constants(weights: Path) -> tuple[list[bytes], int]:
    """Compress to int8; return the constants, and the bytes of `weights` that are resident then."""
    nncf = pytest.importorskip("nncf", reason="needs ovspec[export]")
    model = ov.Core().read_model(weights.with_suffix(".xml"))
    kept = list(model.get_ops())  # the constants keep the file mapped
    model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
    found = resident(weights)
    del kept
    return [op.data.tobytes() for op in model.get_ordered_ops() if op.get_type_name() == "Constant"], found


def test_compression_gives_pages_back(weights: Path) -> None:
    plain, held = compressed_constants(weights)
    with released_when_compressed(weights):
        released, left = compressed_constants(weights)
    assert released == plain
    assert held >= MATRICES * MATRIX_BYTES  # what there is to give back
    assert left < MATRIX_BYTES
    assert compressed_constants(weights)[1] == held  # NNCF is as it was


def test_what_was_given_back_is_read_again(weights: Path) -> None:
    data = weights.read_bytes()
    with weights.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert mapped[:] == data
        assert resident(weights) >= len(data)
        release_pages(weights)
        assert resident(weights) == 0
        assert mapped[:] == data


def test_changed_private_pages_are_kept(weights: Path) -> None:
    with weights.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        mapped[:4] = b"mine"
        release_pages(weights)
        assert mapped[:4] == b"mine"
