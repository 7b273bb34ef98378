"""What compiles a model for known shapes: with how many threads, how often, and after how many passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import openvino as ov

from ovspec.runtime.backends import Backends
from ovspec.runtime.compile import compile_paged, fuses_mlps
from ovspec_transforms import share_threads

SMALL_MODEL = 16 << 20  # bytes of weights; measured with 2 to 12 MB
# A graph of 28 layers takes 1.4 s to compile, slows the passes meanwhile by 1 to 2 s altogether, and gains
# 3.5 ms a pass: it pays after some 400.
_PATIENCE = 4
# Graphs for single rows, and for others: a small one takes some 12 MB, a large one as `LAYER_BYTES` says.
_MOST, MOST_OF_LARGE = (1, 3), (1, 1)
#: Of a layer in each further graph of a model: 30 to 40 MB with 28 layers.
LAYER_BYTES = 1_400_000
#: How they run. Between two passes the other threads fall asleep, and a pass of a small model is over before
#: they pay: on two idle cores with AMX the demo target wrote 1,987 tokens/s with one thread and 1,962 with
#: two, 1,465 and 1,427 with four drafts. Pinned, the only threads of several processes would wait for a core.
_ONE_THREAD = {"INFERENCE_NUM_THREADS": 1, "ENABLE_CPU_PINNING": False}
# Of native operations that have several. One row of a small layer is 10 us of work for one thread; nothing
# was measured with more than two cores.
_MOST_THREADS = 4
# Settings of where the plugin's threads run. Shared threads would not follow them, so there are none then.
_PLACES = ("SCHEDULING_CORE_TYPE", "ENABLE_CPU_PINNING", "ENABLE_CPU_RESERVATION")
_HALVES, _MOST_CONVERTED = ("f16", "bf16"), 4 << 20  # bytes of a constant

Compile = Callable[[ov.Model], ov.CompiledModel]


class FixedCompilers(NamedTuple):
    """What compiles a model for known shapes.

    Attributes:
        fewest: with as few threads as suit the model: one for a small one, as `one_thread`.
        threaded: with several threads; `None` where `fewest` has what there are. If native operations do the
            work, the plugin keeps one thread and they have the others.
        threads: that native operations may have where the plugin has one.
        most: graphs for single rows, and for passes of more.
        patience: as of `BackgroundCompile`.
        fills: whether a pass may take a graph of more rows. In a large model these cost more than they save.
    """

    fewest: Compile
    threaded: Compile | None
    threads: int
    most: tuple[int, int] = _MOST
    patience: int = 1
    fills: bool = True

    @classmethod
    def of(
        cls,
        core: ov.Core,
        backends: Backends,
        own: ov.CompiledModel,
        model: ov.Model,
        native: bool,
    ) -> FixedCompilers | None:
        """Those that honour the user's settings; `None` for a large model whose weights would be copied.

        Args:
            core, own: as of `one_thread`.
            backends: what computes the model.
            model: that `own` was compiled from.
            native: whether attention and all products with weights are native operations.
        """
        device, settings = backends.device, backends.plugin_properties
        if is_small(model):
            return cls._of_small(core, device, settings, own, native)
        if not native or not _shares_weights(model):
            return None
        # Its own threads for native operations, and one for the plugin, would save 0.3 to 2% of a pass of 28
        # layers. The plugin places its threads, and several pipelines have each their own.
        return cls(
            _several_threads(core, device, settings, 1), None, 1, MOST_OF_LARGE, _PATIENCE, fills=False
        )

    @classmethod
    def _of_small(
        cls, core: ov.Core, device: str, settings: Mapping[str, object], own: ov.CompiledModel, native: bool
    ) -> FixedCompilers:
        fewest = one_thread(core, device, settings, own)
        of_pass = int(own.get_property("INFERENCE_NUM_THREADS")) // int(own.get_property("NUM_STREAMS"))
        if of_pass <= 1 or "INFERENCE_NUM_THREADS" in settings or fuses_mlps(own):
            return cls(fewest, None, 1)
        threads = 1 if any(name in settings for name in _PLACES) else min(of_pass, _MOST_THREADS)
        return cls(fewest, _several_threads(core, device, settings, threads if native else 1), threads)


def one_thread(
    core: ov.Core, device: str, settings: Mapping[str, object], own: ov.CompiledModel | None = None
) -> Compile:
    """What compiles a model for one thread, if the user's settings do not ask for more.

    Args:
        core, device, settings: as of `compile_paged`.
        own: the model as it is compiled; MLPs that are fused there need two threads, to have the same bits.
    """

    def compile(model: ov.Model) -> ov.CompiledModel:
        few = {} if own is not None and fuses_mlps(own) else _ONE_THREAD
        return compile_paged(core, model, device, {**few, **settings})

    return compile


def _several_threads(core: ov.Core, device: str, settings: Mapping[str, object], shared: int) -> Compile:
    """What compiles a model for the plugin's threads.

    Args:
        core, device, settings: as of `compile_paged`.
        shared: if more than 1, threads as of `share_threads`; the plugin keeps one then.
    """

    def compile(model: ov.Model) -> ov.CompiledModel:
        if shared <= 1:
            return compile_paged(core, model, device, settings)
        share_threads(model, shared)
        return compile_paged(core, model, device, {**_ONE_THREAD, **settings})

    return compile


def is_small(model: ov.Model) -> bool:
    """Whether a model has so few weights that the operations' own costs count in a pass."""
    return sum(size for _, size in _constants(model)) <= SMALL_MODEL


def _shares_weights(model: ov.Model) -> bool:
    """Whether another graph of a model takes its weights as they are, where native operations read them.

    OpenVINO converts tables of f16 and bf16 to f32 while it compiles, which takes twice their memory.
    """
    return all(size <= _MOST_CONVERTED for name, size in _constants(model) if name in _HALVES)


def _constants(model: ov.Model) -> list[tuple[str, int]]:
    """Element type and bytes of each."""
    nodes = (node for node in model.get_ops() if node.get_type_name() == "Constant")
    return [(node.get_element_type().get_type_name(), node.get_byte_size()) for node in nodes]
