"""Export that compresses the weights in memory before the model is written."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import openvino as ov

from ovspec_models.export.mapped_weights import released_when_read
from ovspec_models.export.weight_rows import compressed_by_rows
from ovspec_models.folder.private_names import misfit
from ovspec_transforms import fill_empty_weights, rope_angles


@contextmanager
def compressed_before_saved(
    source: str,
    quantization: Any,
    use_cache: bool,
    trust_remote_code: bool,
    by_size: bool,
    warn: Callable[[str], None],
    exact_angles: bool = False,
) -> Iterator[bool]:
    """Let optimum-intel's export compress the model in memory, and write nothing but the result.

    ``optimum-cli`` writes the floating-point model, reads it back, compresses it and writes it again. This
    needs more disk space than the checkpoint, and as much memory, because every page of the checkpoint
    becomes resident. Here the weights are compressed one by one where the shards are mapped. The result is
    bitwise the same in all compared formats except scale estimation, where one byte of the scales differed.

    Args:
        source: the checkpoint's folder or ID; optimum-intel uses it to find layers that are not compressed.
        quantization: optimum-intel's weight compression configuration; `None` for none.
        use_cache: the model is exported with its cache.
        trust_remote_code: run code that comes with the checkpoint.
        by_size: without `quantization`, compress a large model to int8 as optimum-intel does by default.
        warn: told where the installed optimum-intel does not let this be done.
        exact_angles: first take the products with rotary frequencies for no linear layers. NNCF would round
            Qwen3.5's frequencies, by which an angle is wrong the further back its token is.

    Yields:
        Whether it is done. Where it is not, optimum-intel itself compresses by size, and what `quantization`
        says is left to `compress_folder`.
    """
    if reason := _misfit():
        warn(f"{reason}: the export takes the disk and the memory of the uncompressed model as well")
        yield False
        return
    # Not public, as `_apply_quantization` below.
    from optimum.exporters.openvino import convert
    from optimum.exporters.openvino.utils import OV_XML_FILE_NAME

    original = convert.save_model

    def save_model(model: ov.Model, path: Path, *rest: Any) -> None:
        if Path(path).name == OV_XML_FILE_NAME:  # not of the tokenizer
            fill_empty_weights(model)
            compress(model, Path(path).parent)
        original(model, path, *rest)

    def compress(model: ov.Model, folder: Path) -> None:
        _forget_trace()
        with released_when_read(warn), compressed_by_rows(warn):
            if exact_angles and (quantization is not None or by_size):
                rope_angles(model)
            if quantization is not None:
                _compress(model, folder, source, quantization, use_cache, trust_remote_code)
            elif by_size and _is_large(model):
                _compress_to_int8(model)

    with patch.multiple(convert, save_model=save_model):
        yield True


def compress_folder(folder: Path, quantization: Any, trust_remote_code: bool) -> None:
    """Compress the weights of an exported folder through optimum-intel's documented interface."""
    from optimum.intel import OVModelForCausalLM

    model = OVModelForCausalLM.from_pretrained(
        folder, quantization_config=quantization, compile=False, trust_remote_code=trust_remote_code
    )
    with TemporaryDirectory(dir=folder, prefix=".compressed-") as scratch:
        model.save_pretrained(scratch)
        del model  # it maps the files that are replaced
        for path in Path(scratch).glob("openvino_*"):
            path.replace(folder / path.name)


def _misfit() -> str:
    """Why the installed optimum-intel can't compress before it saves; empty where it can."""
    model = "OVModelForCausalLM"
    wanted = ("compile_only", "compile_model", "model_name_or_path", "trust_remote_code")
    return (
        misfit("optimum.exporters.openvino.convert", ["save_model"])
        or misfit(
            "optimum.exporters.openvino.utils",
            ["OV_XML_FILE_NAME", "clear_class_registry", "_MAX_UNCOMPRESSED_SIZE"],
        )
        or misfit("optimum.intel.openvino.quantization", ["_weight_only_quantization"])
        or misfit(
            "optimum.intel",
            [f"{model}.load_model", f"{model}._from_pretrained", f"{model}._apply_quantization"],
            OVModelForCausalLM___apply_quantization=wanted,
        )
    )


def _forget_trace() -> None:
    """Free what torch keeps of the model's trace, about 6 MB per layer."""
    from optimum.exporters.openvino.utils import clear_class_registry

    clear_class_registry()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):  # of glibc
        libc.malloc_trim(0)


def _compress(
    model: ov.Model, folder: Path, source: str, quantization: Any, use_cache: bool, trust_remote_code: bool
) -> None:
    """Compress `model` in place; optimum-intel's record of it goes to `folder`, which has a config.json."""
    from optimum.intel import OVModelForCausalLM
    from transformers import AutoConfig

    class Converted(OVModelForCausalLM):  # type: ignore[misc]
        @staticmethod
        def load_model(*_: Any, **__: Any) -> ov.Model:
            return model

    config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    # Calibration needs the family's own class.
    whole = Converted._from_pretrained(folder, config, compile=False, use_cache=use_cache)
    whole._apply_quantization(
        quantization,
        compile_only=False,
        compile_model=False,
        model_name_or_path=source,
        trust_remote_code=trust_remote_code,
    )
    whole._openvino_config.save_pretrained(folder)


def _is_large(model: ov.Model) -> bool:
    from optimum.exporters.openvino.utils import _MAX_UNCOMPRESSED_SIZE

    floating = (ov.Type.f16, ov.Type.bf16, ov.Type.f32)
    constants = (op for op in model.get_ops() if op.get_type_name() == "Constant")
    parameters = sum(math.prod(op.shape) for op in constants if op.get_element_type() in floating)
    return bool(parameters >= _MAX_UNCOMPRESSED_SIZE)


def _compress_to_int8(model: ov.Model) -> None:
    from optimum.intel.openvino.quantization import _weight_only_quantization

    _weight_only_quantization(model, {"bits": 8, "sym": False})
