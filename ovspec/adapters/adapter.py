"""A LoRA adapter, as `openvino_genai.Adapter`."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import openvino as ov

from ovspec.adapters.adapter_file import CONFIG, AdapterLayer, read_config, read_layers
from ovspec.errors import InvalidTypeError, InvalidValueError


class Adapter:
    """An immutable LoRA adapter, which is itself the key by which configurations name it.

    Needs `safetensors`: `pip install "ovspec[adapters]"`.

    Args:
        source: file in safetensors' format, with layers as PEFT names them (`...lora_A.weight`,
            `...lora_B.weight`), or kohya's scripts (`lora_down`, `lora_up`, `alpha`); or a tensor with the
            content of such a file. What it adds is alpha * scale * B A: the scale is lora_alpha / rank where
            an `adapter_config.json` beside the file or an `alpha` in it says lora_alpha, else 1. Without a
            source it is no adapter, and false.

    Raises:
        InvalidValueError: a file that can't be read, is damaged or of another kind of adapter.
    """

    def __init__(self, source: str | os.PathLike[str] | ov.Tensor | None = None) -> None:
        self._layers: tuple[AdapterLayer, ...] = ()
        self._digest = b""
        self._name = "Adapter()"
        if source is None:
            return
        if isinstance(source, ov.Tensor):
            self._name, content, config = "the adapter", source.data.tobytes(), {}
        elif isinstance(source, (str, os.PathLike)):
            path = Path(source)
            self._name = str(path)
            content, config = _read(path), read_config(path)
        else:
            kind = type(source).__name__
            raise InvalidTypeError(f"Adapter: expected the name of a file or an openvino.Tensor, got {kind}")
        self._layers = read_layers(self._name, content, config)
        self._digest = self._identity()

    def __bool__(self) -> bool:
        return bool(self._layers)

    def __repr__(self) -> str:
        return f"Adapter({self._name!r})"

    @property
    def name(self) -> str:
        """The file, for messages."""
        return self._name

    @property
    def layers(self) -> tuple[AdapterLayer, ...]:
        """What it adds to each layer."""
        return self._layers

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes."""
        return sum(layer.product.nbytes for layer in self._layers)

    @property
    def digest(self) -> bytes:
        """Of all that it adds: equal for two adapters that compute the same."""
        return self._digest

    def _identity(self) -> bytes:
        digest = hashlib.blake2b(digest_size=16)
        for layer in self._layers:
            product = layer.product
            digest.update(f"{layer.name} {product.a.shape} {layer.outputs} {layer.scale!r}".encode())
            digest.update(product.a.data)
            digest.update(product.b.data)
        return digest.digest()


def _read(path: Path) -> bytes:
    if path.is_dir():
        raise InvalidValueError(
            f"{path} is a folder: give the file in it, such as {path / 'adapter_model.safetensors'}, beside "
            f"its {CONFIG}"
        )
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidValueError(
            f"{path}: {error.strerror or error}; give the file of a LoRA adapter"
        ) from error
