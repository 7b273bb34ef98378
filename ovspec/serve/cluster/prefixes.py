"""Beginnings of prompts, and which replicas have read them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

# Beginnings of a prompt that are remembered: of so many tokens, and of each power of two above.
_SHORTEST, _LONGEST = 32, 2**16
_MOST_PREFIXES = 100_000
# A replica that has so many requests more than another is too busy, whatever it has read.
_BUSIER = 4


def prefixes(tokens: Sequence[int]) -> list[bytes]:
    """Digests of a prompt's beginnings, the longest first."""
    data, found, length = np.array(tokens, np.int64).tobytes(), list[bytes](), _SHORTEST
    digest, begin = blake2b(digest_size=16), 0
    while length <= min(len(tokens), _LONGEST):
        digest.update(data[8 * begin : 8 * length])
        found.append(digest.digest())
        begin, length = length, 2 * length
    return found[::-1]


class Readers:
    """Remembers which replicas have read which beginnings of prompts; the oldest are forgotten."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, set[Any]] = OrderedDict()

    def add(self, found: Sequence[bytes], replica: Any) -> None:
        """A replica has read a prompt with these `prefixes`."""
        for prefix in found:
            self._known.setdefault(prefix, set()).add(replica)
            self._known.move_to_end(prefix)
        while len(self._known) > _MOST_PREFIXES:
            self._known.popitem(last=False)

    def best(self, found: Sequence[bytes], loads: dict[Any, int]) -> set[Any]:
        """Those of the replicas, given with their loads, that have read most and are not too busy."""
        most = min(loads.values(), default=0) + _BUSIER
        idle = {replica for replica, load in loads.items() if load < most}
        return next((good for one in found if (good := self._known.get(one, set()) & idle)), set())
