"""The model of a benchmark: from a folder, or random weights of a real shape."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import openvino as ov

import ovspec_ops
from ovspec.devices.devices import openvino_core
from ovspec.graphs.compile import read_model
from ovspec.memory.machine_memory import available_bytes
from ovspec_models import ModelInfo, OvspecConfig
from ovspec_models.shapes import ModelShape, get_shape
from ovspec_models.synthetic import WEIGHT_FORMATS, build_model, weight_bytes


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that can be loaded, with its sizes.

    Attributes:
        name: name of the shape or the folder.
        weight_format: int8, int4, fp16, bf16 or fp32.
        operations: native operations in its IR.
    """

    name: str
    synthetic: bool
    weight_format: str
    weight_bytes: int
    num_hidden_layers: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    shape: ModelShape | None = None
    folder: Path | None = None
    operations: tuple[str, ...] = ()

    @classmethod
    def from_shape(
        cls, name: str, layers: int | None, vocab_size: int | None, weight_format: str | None
    ) -> ModelSource:
        """Random weights of a named shape; `None`: its own layers, 32000 tokens, int8.

        Raises:
            ValueError: an unknown shape, more layers than it has, or weights that memory does not hold.
        """
        shape, weight_format = get_shape(name, layers, vocab_size), weight_format or WEIGHT_FORMATS[0]
        most, available = get_shape(name).num_hidden_layers, available_bytes()
        if shape.num_hidden_layers > most:
            raise ValueError(f"--layers {layers}: {name} has {most}; give at most so many")
        if (needed := weight_bytes(shape, weight_format)) > available:
            raise ValueError(
                f"not enough memory for the random weights of {name}: about {needed / 1e9:.1f} GB are "
                f"needed, {available / 1e9:.1f} GB are available; give fewer --layers, or a "
                "smaller --vocab-size"
            )
        return cls(
            name=name,
            synthetic=True,
            weight_format=weight_format,
            weight_bytes=weight_bytes(shape, weight_format),
            num_hidden_layers=shape.num_hidden_layers,
            num_key_value_heads=shape.num_key_value_heads,
            head_dim=shape.head_dim,
            vocab_size=shape.vocab_size,
            max_position_embeddings=shape.max_position_embeddings,
            shape=shape,
        )

    @classmethod
    def from_folder(cls, folder: Path) -> ModelSource:
        """The model of a folder that `ovspec export` or `optimum-cli export openvino` wrote."""
        info = ModelInfo.read(folder)
        config = OvspecConfig.load(folder)
        return cls(
            name=str(folder),
            synthetic=False,
            weight_format=info.weight_format(),
            weight_bytes=info.weight_bytes,
            num_hidden_layers=info.num_kv_layers,
            num_key_value_heads=info.num_key_value_heads,
            head_dim=info.head_dim,
            vocab_size=info.vocab_size,
            max_position_embeddings=info.max_position_embeddings or 2**31 - 1,
            folder=folder,
            operations=tuple(config.operations) if config else (),
        )

    def check_stock(self, option: str) -> None:
        """Refuse the option that asks for stock if the model's IR contains native operations."""
        if self.operations:
            raise ValueError(
                f"{option}: {self.name} holds our operations ({', '.join(self.operations)}), so that it "
                "has no stock form; leave stock out, or export the model without them"
            )

    def load(self, native: bool) -> ov.Model:
        """Build or read the stateful model; `native` allows native operations in the IR."""
        if self.shape is not None:
            return build_model(self.shape, self.weight_format)
        assert self.folder is not None
        core = openvino_core()
        if native:
            ovspec_ops.load(core)
        return read_model(core, self.folder)

    def cache_bytes(self, tokens: int, stock: bool) -> int:
        """Upper estimate of the bytes of the keys and values of `tokens` tokens."""
        rows = 2 * tokens * self.num_hidden_layers * self.num_key_value_heads
        # An exported IR may set f16 as its cache precision. A quantised row takes its bytes plus scale and
        # zero point; by channel, a quarter more.
        if stock:
            return rows * (2 * self.head_dim if not self.synthetic else self.head_dim * 5 // 4 + 8)
        return rows * (self.head_dim + 8)
