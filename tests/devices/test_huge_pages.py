from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from ovspec.devices.huge_pages import advise_huge_pages, with_huge_pages
from ovspec.graphs import model_cache

SMAPS = Path("/proc/self/smaps")


def flags_at(address: int) -> set[str]:
    """Flags of the memory mapping that holds an address, as the kernel lists them."""
    inside = False
    for line in SMAPS.read_text().splitlines():
        first = line.split()[0]
        if not first.endswith(":"):
            begin, end = (int(part, 16) for part in first.split("-"))
            inside = begin <= address < end
        elif inside and first == "VmFlags:":
            return set(line.split()[1:])
    raise LookupError(f"no mapping at {address:#x}")


asks = pytest.mark.skipif(
    not SMAPS.exists() or not Path("/sys/kernel/mm/transparent_hugepage").exists(),
    reason="this kernel has no huge pages to ask for",
)


@asks
@pytest.mark.parametrize("dtype", [ov.Type.u8, ov.Type.bf16, ov.Type.f32])
def test_a_large_tensor_asks_for_huge_pages(dtype: ov.Type) -> None:
    tensor = ov.Tensor(dtype, ov.Shape([2**26 // dtype.size]))
    advise_huge_pages(tensor)
    data = tensor.data.view(np.uint8)
    data[...] = 7
    assert "hg" in flags_at(data.ctypes.data + data.nbytes // 2)
    assert (data == 7).all()


@asks
def test_a_model_of_the_cache_folder_asks_for_huge_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_cache, "_MAPPED", {})
    kept = tmp_path / "kept.blob"
    kept.write_bytes(b"header\n" + bytes(2**26))
    data = model_cache._mapped(kept)
    assert "hg" in flags_at(data.ctypes.data + data.nbytes // 2)
    assert data.size == 2**26


@pytest.mark.skipif(not SMAPS.exists(), reason="Linux's huge pages")
@pytest.mark.parametrize(("size", "taken"), [(3, 3), (4, 4), (5, 6)])
def test_the_last_page_of_a_tensor_is_whole(size: int, taken: int) -> None:
    assert with_huge_pages(size << 20) == taken << 20
