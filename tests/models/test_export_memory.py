"""An export compresses the weights that the checkpoint's shards map, and never writes them as they are."""

from __future__ import annotations

import re
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import openvino as ov
import pytest
import torch
from tiny_checkpoints import TINY, random_model

from ovspec_models import ModelInfo, export_model
from ovspec_models.export import weight_rows

convert = pytest.importorskip("optimum.exporters.openvino.convert", reason="needs ovspec[export]")
_SIZES = {"hidden_size": 512, "intermediate_size": 1408, "vocab_size": 4096, "tie_word_embeddings": True}
_FLOATING = ("f32", "f16", "bf16")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, demo_draft: Path) -> Path:
    """A Llama with 8.5 M parameters in bf16, in several shards."""
    folder = tmp_path_factory.mktemp("llama")
    model = random_model(TINY["Llama"], **_SIZES).to(torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="6MB")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((demo_draft / name).read_bytes())
    assert len(list(folder.glob("*.safetensors"))) > 2
    return folder


def shard_bytes(checkpoint: Path) -> int:
    return sum(shard.stat().st_size for shard in checkpoint.glob("*.safetensors"))


@pytest.fixture
def room(checkpoint: Path) -> Iterator[int]:
    """No file of the export may be larger than 0.7 of the checkpoint, as on a disk without more room."""
    limit = int(0.7 * shard_bytes(checkpoint))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def resident(checkpoint: Path) -> int:
    """Return the bytes of the checkpoint's shards that are resident in this process."""
    blocks = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    return sum(
        int(re.search(r"^Rss:\s+(\d+) kB", block, re.MULTILINE)[1]) * 1024
        for block in blocks
        if f" {checkpoint}/" in block.splitlines()[0]
    )


def matrix_bytes(model: ov.Model) -> dict[str, int]:
    """Bytes of constants of two dimensions and more, by element type."""
    found: dict[str, int] = {}
    for op in model.get_ops():
        if op.get_type_name() == "Constant" and len(op.shape) > 1 and op.get_byte_size() > 4096:
            kind = op.get_element_type().get_type_name()
            found[kind] = found.get(kind, 0) + op.get_byte_size()
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="reads Linux's /proc")
@pytest.mark.parametrize("weight_format", ["int8", "int4"])
def test_only_compressed_weights_are_held_when_it_writes(
    weight_format: str, checkpoint: Path, tmp_path: Path, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[tuple[dict[str, int], int]] = []
    original: Callable[..., None] = convert.save_model

    def recording(model: ov.Model, path: Path, *rest: object) -> None:
        if Path(path).name == "openvino_model.xml":
            saved.append((matrix_bytes(model), resident(checkpoint)))
        original(model, path, *rest)

    monkeypatch.setattr(convert, "save_model", recording)
    monkeypatch.setattr(weight_rows, "VALUES_AT_ONCE", 1 << 18)
    out = export_model(checkpoint, tmp_path / "ir", weight_format=weight_format)
    ((kinds, left),) = saved
    floating = sum(kinds.get(kind, 0) for kind in _FLOATING)  # scales of int4's groups are as well
    assert floating < 0.1 * sum(kinds.values())
    # All were read; the last ones are still there, in pages of up to 2 MB.
    assert left < 0.5 * shard_bytes(checkpoint)
    assert ModelInfo.read(out).weight_format() == weight_format
    assert convert.save_model is recording


@pytest.mark.slow
def test_a_large_model_is_int8_by_default(
    checkpoint: Path, tmp_path: Path, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is large for optimum-intel has 1e9 parameters; here, 1e6."""
    for name in ("utils", "__main__"):
        monkeypatch.setattr(f"optimum.exporters.openvino.{name}._MAX_UNCOMPRESSED_SIZE", 1_000_000)
    out = export_model(checkpoint, tmp_path / "ir")
    asked = export_model(checkpoint, tmp_path / "asked", weight_format="int8")
    assert ModelInfo.read(out).weight_format() == "int8"
    assert (out / "openvino_model.bin").read_bytes() == (asked / "openvino_model.bin").read_bytes()


def test_the_room_is_too_small_for_the_weights_as_they_are(
    checkpoint: Path, tmp_path: Path, room: int
) -> None:
    with pytest.raises(RuntimeError, match="make room there"):
        export_model(checkpoint, tmp_path / "ir", weight_format="bf16")
