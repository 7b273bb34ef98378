"""Names of devices, and what is refused of them before a model is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from ovspec.cache.cache_memory import HostBlocks, blocks_on
from ovspec.devices.devices import is_cpu, is_gpu, openvino_core, resolve_device
from ovspec.devices.properties import check_properties
from ovspec.memory.device_memory import device_bytes
from ovspec.runner.model_runner import ModelRunner


def test_auto_chooses_once() -> None:
    assert resolve_device("AUTO:CPU") == "CPU"
    assert resolve_device("AUTO") in {"CPU", "GPU", "GPU.0"}
    assert resolve_device("GPU.1") == "GPU.1"  # whether it is there is asked later
    assert is_cpu("CPU") and is_gpu("GPU.1") and not is_gpu("CPU")


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("MULTI:CPU", "the cache lies on one device; expected one of .*CPU"),
        ("HETERO:CPU", "the cache lies on one device"),
        ("AUTO:NONE", "finds no device: expected AUTO or one of .*CPU"),
        ("GPU.7", r"'GPU.7' is not available here: expected one of .*CPU"),
        ("CPU.0", r"'CPU.0' is not available here: expected one of .*CPU"),
        ("CPU:0", r"'CPU:0' is not available here"),
        ("cpu", r"'cpu' is not available here"),
    ],
)
def test_a_device_that_cannot_serve_is_refused(demo_ir: Path, device: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ModelRunner(demo_ir, device)


@pytest.mark.parametrize("hint", [{"INFERENCE_PRECISION_HINT": "f32"}, {"EXECUTION_MODE_HINT": "ACCURACY"}])
def test_f32_with_a_u8_cache_is_refused_on_a_gpu(hint: dict[str, str]) -> None:
    class Known:
        available_devices = ("GPU",)

        def get_property(self, device: str, name: str) -> list[str]:
            return ["0"] if name == "AVAILABLE_DEVICES" else [*hint]

    with pytest.raises(ValueError, match="KV_CACHE_PRECISION=u8 with an inference precision of f32"):
        check_properties(Known(), "GPU", {**hint, "KV_CACHE_PRECISION": "u8"})  # type: ignore[arg-type]


def test_a_property_that_the_plugin_refuses_is_named(demo_ir: Path) -> None:
    with pytest.raises(ValueError, match=r"refuses .* property: INFERENCE_NUM_THREADS=many: .+"):
        ModelRunner(demo_ir, "CPU", properties={"INFERENCE_NUM_THREADS": "many"})


def test_blocks_are_read_written_and_copied() -> None:
    assert blocks_on("CPU") is HostBlocks
    rng = np.random.default_rng(0)
    blocks, more = HostBlocks(ov.Type.bf16, [4, 2, 3]), HostBlocks(ov.Type.bf16, [9, 2, 3])
    data = rng.integers(0, 256, (4, 12), np.uint8)
    blocks.write(np.arange(4), data)
    more.copy(blocks, 0, 0, 4)
    more.copy(more, 2, 7, 1)
    assert np.array_equal(more.read(np.array([3, 7, 0])), data[[3, 2, 0]])


def test_the_memory_of_a_cpu_is_the_machines() -> None:
    assert device_bytes("CPU") > 0
    assert openvino_core() is openvino_core()


@pytest.mark.parametrize(("element_type", "row"), [(ov.Type.u8, 24), (ov.Type.bf16, 16), (ov.Type.f32, 16)])
def test_tokens_move_within_a_cache(element_type: ov.Type, row: int) -> None:
    """Every head's row of a token goes where it is sent, also within its block, and nothing else changes."""
    blocks = HostBlocks(element_type, [5, 2, 8, row])
    data = blocks.tensor.data.view(np.uint8).reshape(5, 2, 8, -1)
    data[...] = np.random.default_rng(1).integers(0, 255, data.shape)
    want = data.copy()
    moved = np.array([[3, 3, 1], [3, 3, 3]]), np.array([[5, 6, 0], [4, 5, 6]])
    for source, place, target, to in zip(moved[0][0], moved[1][0], moved[0][1], moved[1][1], strict=True):
        want[target, :, to] = data[source, :, place]
    blocks.move(*moved, axis=1)
    np.testing.assert_array_equal(data, want)
