"""Compiles graphs for passes that come again and again, in a thread of its own."""

from __future__ import annotations

import concurrent.futures
import logging
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import openvino as ov

from ovspec.runtime.cache import KVCache

_LOG = logging.getLogger(__name__)

# A small model takes 70 to 500 ms to compile and saves 30 to 165 us a pass, so it pays after about 1,000
# passes. A text of 128 passes usually goes on so long.
PASSES = 128

# Waited for when the interpreter ends; one at a time leaves the other cores to the passes.
_COMPILER = ThreadPoolExecutor(1, "ovspec-compile")
_unfinished = set[Future[Any]]()


class CompiledGraph(Protocol):
    """A graph and what it runs with."""

    @property
    def requests(self) -> Sequence[ov.InferRequest]:
        """Those that run the graph."""


Key = TypeVar("Key", bound=Hashable)
Graph = TypeVar("Graph", bound=CompiledGraph)


@dataclass(slots=True)
class _Asked(Generic[Graph]):
    """How often a graph was asked for, and what came of it."""

    count: int = 0
    compiling: Future[Graph | None] | None = None
    graph: Graph | None = None


@dataclass(slots=True)
class BackgroundCompile(Generic[Key, Graph]):
    """Compiles a graph in a thread of its own, once it was asked for 128 times; anew at once after `renew`.

    Args:
        cache: that the graphs read and write.
        most: graphs; further ones are not compiled.
        patience: how many times 128.
    """

    cache: KVCache
    most: int
    patience: int = 1
    _asked: dict[Key, _Asked[Graph]] = field(default_factory=dict)
    _begun: int = 0

    def find(self, key: Key, compile: Callable[[], Graph | None]) -> Graph | None:
        """Count a use of a graph; the graph, `None` where there is none yet.

        Args:
            key: of the graph; its `str` is in the warning where it can't be compiled.
            compile: makes it, in another thread; `None` where it is not to be used.
        """
        asked = self._asked.get(key)
        if asked is None:
            asked = self._asked[key] = _Asked()
        asked.count += 1
        if asked.count == self._passes and self._begun < self.most:
            self._begun += 1
            asked.compiling = _COMPILER.submit(_made, key, compile)
            _unfinished.add(asked.compiling)
            asked.compiling.add_done_callback(_unfinished.discard)
        if asked.compiling is not None and asked.compiling.done():
            asked.graph, asked.compiling = asked.compiling.result(), None
            if asked.graph is not None:
                for request in asked.graph.requests:
                    self.cache.attach(request)
        return asked.graph

    @property
    def _passes(self) -> int:
        return PASSES * self.patience

    @property
    def ready(self) -> dict[Key, Graph]:
        """The graphs that are in use, by key."""
        return {key: asked.graph for key, asked in self._asked.items() if asked.graph is not None}

    def renew(self) -> None:
        """Forget the graphs, those that are being compiled too; one that is asked for is compiled anew."""
        for asked in self._asked.values():
            if asked.graph is None and asked.compiling is None:
                continue  # not asked for often, or not to be used
            for request in asked.graph.requests if asked.graph else ():
                self.cache.detach(request)
            if asked.compiling is not None:
                asked.compiling.cancel()  # where it has not begun
            asked.count, asked.graph, asked.compiling = self._passes - 1, None, None
            self._begun -= 1

    def wait(self) -> None:
        """Wait for the graphs that are being compiled."""
        concurrent.futures.wait([a.compiling for a in self._asked.values() if a.compiling is not None])


def is_compiling() -> bool:
    """Whether a graph of any model is being compiled, which slows the passes of all."""
    return bool(_unfinished)


def _made(key: Hashable, compile: Callable[[], Graph | None]) -> Graph | None:
    """What `compile` makes; the passes can go on without."""
    try:
        return compile()
    except (MemoryError, RuntimeError, ValueError) as error:
        _LOG.warning("ovspec: no graph is compiled for %s (%s); its passes go on as before", key, error)
        return None
