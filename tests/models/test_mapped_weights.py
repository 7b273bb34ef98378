"""Pages of mapped weights are given back while they are compressed, and nothing else changes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from ovspec_models.export.mapped_weights import release_pages, released_when_read

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="reads Linux's /proc")

MATRICES, SIDE = 16, 512
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
    """A file of 16 matrices `[512, 512]` f32, 16 MB in all."""
    rng = np.random.default_rng(1)
    rng.standard_normal((MATRICES, SIDE, SIDE), np.float32).tofile(tmp_path / "weights")
    return tmp_path / "weights"


def mapped(weights: Path, mode: str) -> np.ndarray:
    return np.memmap(weights, np.float32, mode, shape=(MATRICES, SIDE, SIDE))


def model(matrices: np.ndarray) -> ov.Model:
    """Matrices after each other, which stay where they are."""
    tokens = ops.parameter([1, SIDE], np.float32)
    out = tokens
    for matrix in matrices:
        constant = ov.op.Constant(ov.Tensor(matrix, shared_memory=True), shared_memory=True)
        out = ops.matmul(out, constant, False, True)
    return ov.Model([out], [tokens])


def compressed_constants(weights: Path) -> tuple[list[bytes], int]:
    """Compress to int8; return the constants, and the bytes of `weights` that are resident then.

    They are mapped as torch maps a checkpoint's shards: so that this process could write pages of its own.
    """
    nncf = pytest.importorskip("nncf", reason="needs ovspec[export]")
    matrices = mapped(weights, "c")
    compressed = nncf.compress_weights(model(matrices), mode=nncf.CompressWeightsMode.INT8_ASYM)
    constants = [op for op in compressed.get_ordered_ops() if op.get_type_name() == "Constant"]
    return [op.data.tobytes() for op in constants], resident(weights)


@pytest.mark.slow
def test_compression_gives_pages_back(weights: Path) -> None:
    plain, held = compressed_constants(weights)
    with released_when_read(pytest.fail):
        released, left = compressed_constants(weights)
    assert released == plain
    assert held >= MATRICES * MATRIX_BYTES  # what there is to give back
    assert left <= 0.5 * held  # the last one, after which nothing is read, in pages of up to 2 MB
    assert compressed_constants(weights)[1] == held  # NNCF is as it was


@pytest.mark.parametrize("mode", ["r", "c"])
def test_what_was_given_back_is_read_again(weights: Path, mode: str) -> None:
    matrices = mapped(weights, mode)
    before = matrices.sum()
    assert resident(weights) >= MATRICES * MATRIX_BYTES
    release_pages(matrices[1:7])
    assert resident(weights) <= (MATRICES - 6) * MATRIX_BYTES
    release_pages(matrices)
    assert resident(weights) == 0
    assert matrices.sum() == before


def test_changed_pages_are_kept(weights: Path) -> None:
    matrices = mapped(weights, "c")
    matrices[1, 2, 3] = 7.0
    release_pages(matrices)
    assert matrices[1, 2, 3] == 7.0


def test_memory_of_no_file_is_kept() -> None:
    values = np.arange(1 << 20)
    release_pages(values)
    np.testing.assert_array_equal(values, np.arange(1 << 20))
    release_pages(values[:0])
