"""Which replica answers a request: one that has read what the prompt begins with, if it is not too busy."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

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


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """Ray Serve's router, asked for `choose_replicas` with a `Request` as the first argument."""

    def initialize_state(self) -> None:
        """Begin without knowledge; each server process has a router of its own."""
        self._readers = Readers()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The replicas to ask, in groups; Ray Serve takes the least busy one of the first that has room."""
        if pending_request is None:
            return [candidate_replicas]
        loads = {one.replica_id: self.load(one.replica_id) for one in candidate_replicas}
        good = self._readers.best(prefixes(pending_request.args[0].prompt_token_ids), loads)
        groups = ([one for one in candidate_replicas if (one.replica_id in good) is wanted] for wanted in (True, False))
        return [group for group in groups if group]

    def load(self, replica: ReplicaID) -> int:
        """Requests that a replica has, as far as is known here."""
        return self.replica_queue_len_cache.get(replica) or 0

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """Remember who reads the prompt."""
        self._readers.add(prefixes(pending_request.args[0].prompt_token_ids), replica_id)
