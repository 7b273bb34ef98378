"""Adapters for the layers of one model, and the rows of a pass that use them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ovspec.adapters.adapter import Adapter
from ovspec.adapters.adapter_config import AdapterBlend
from ovspec.adapters.adapter_file import AdapterLayer
from ovspec.errors import InvalidValueError
from ovspec_models.folder.shown import cut
from ovspec_ops.linear.adapters import AdapterTable, LayerProducts, LowRank
from ovspec_transforms import AdaptedLayer

_PEFT_WRAPPER = "base_model.model."


@dataclass(frozen=True, slots=True, eq=False)
class LoadedBlend:
    """What rows of a request add to each layer.

    Attributes:
        identity: as of `AdapterBlend`.
        table: that the operations read.
    """

    identity: bytes
    table: AdapterTable


class ModelAdapters:
    """Finds the layers of a model that adapters add to; any thread may ask.

    Args:
        layers: that adapters can add to, in the order of the graph's numbers.
    """

    def __init__(self, layers: Sequence[AdaptedLayer]) -> None:
        self._layers = layers
        # A module that is called twice has two products, and its name both numbers.
        self._numbers = dict[str, list[int]]()
        for number, layer in enumerate(layers):
            self._numbers.setdefault(_plain(layer.name), []).append(number)
        self._known = weakref.WeakKeyDictionary[Adapter, LayerProducts]()

    @property
    def names(self) -> tuple[str, ...]:
        """The layers' names in the checkpoint."""
        return tuple(layer.name for layer in self._layers)

    def check(self, adapters: Iterable[Adapter]) -> None:
        """Refuse adapters that do not fit the model.

        Raises:
            InvalidValueError: an adapter with a layer that the model lacks, or of another size.
        """
        for adapter in adapters:
            self._products(adapter)

    def load(self, blend: AdapterBlend | None) -> LoadedBlend | None:
        """What the rows of a request with these adapters add; `None`: nothing.

        Raises:
            InvalidValueError: as `check`.
        """
        if blend is None:
            return None
        parts = [(self._products(adapter), alpha) for adapter, alpha in blend.parts]
        return LoadedBlend(blend.identity, AdapterTable(len(self._layers), parts))

    def _products(self, adapter: Adapter) -> LayerProducts:
        """What an adapter adds to the layers of this model."""
        if (known := self._known.get(adapter)) is not None:
            return known
        found = dict[int, tuple[LowRank, float]]()
        for layer in adapter.layers:
            numbers = self._of(adapter, layer)
            if numbers[0] in found:
                raise InvalidValueError(f"{adapter.name}: {cut(layer.name)} is there twice; save it again")
            found |= dict.fromkeys(numbers, (layer.product, layer.scale))
        return self._known.setdefault(adapter, LayerProducts(found))

    def _of(self, adapter: Adapter, layer: AdapterLayer) -> list[int]:
        """The numbers of the model's layer that an adapter's names."""
        plain = _plain(layer.name)
        numbers = self._numbers.get(plain, [])
        if not numbers:
            # Some exports have a wrapper's name in front, some adapters too, as kohya's "lora_te_".
            ends = [found for name, found in self._numbers.items() if _ends_alike(name, plain)]
            numbers = ends[0] if len(ends) == 1 else []
        if not numbers:
            raise InvalidValueError(
                f"{adapter.name}: the model has no linear layer {cut(layer.name)!r} that adapters add to"
                f"{self._why(plain)}"
            )
        got = layer.inputs, layer.outputs
        for of_model in (self._layers[number] for number in numbers):
            if got != (of_model.inputs, of_model.outputs):
                raise InvalidValueError(
                    f"{adapter.name}: {cut(layer.name)!r} is of {got[0]} inputs and {got[1]} outputs, the "
                    f"model's layer of {of_model.inputs} and {of_model.outputs}: the adapter is for another "
                    "model"
                )
        return numbers

    def _why(self, plain: str) -> str:
        """Why the model has no layer of a name."""
        if self._numbers and all(known.startswith("MatMul_") for known in self._numbers):
            return ": its IR, as that of a GGUF file, names no layers; export the checkpoint"
        if "_experts_" in plain:
            return ": the weights of experts take none"
        if plain.endswith(("lm_head", "embed_tokens")):
            return ": embedding and output layer take none"
        if "_mlp_" in plain and not any("_mlp_" in known for known in self._numbers):
            return ": gated MLPs take none with ffn='native' or limited channels"
        return ""


def _plain(name: str) -> str:
    """A layer's name without PEFT's wrapper, and with "_" for points, as kohya's scripts write it."""
    return name.removeprefix(_PEFT_WRAPPER).replace(".", "_")


def _ends_alike(one: str, other: str) -> bool:
    """Whether one name is the other with something in front."""
    return one.endswith(f"_{other}") or other.endswith(f"_{one}")
