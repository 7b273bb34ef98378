"""Which replica answers a request: one that has read what the prompt begins with, if it is not too busy."""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from ovspec.serve.cluster.prefixes import Readers, prefixes


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
        groups = (
            [one for one in candidate_replicas if (one.replica_id in good) is wanted]
            for wanted in (True, False)
        )
        return [group for group in groups if group]

    def load(self, replica: ReplicaID) -> int:
        """Requests that a replica has, as far as is known here."""
        return self.replica_queue_len_cache.get(replica) or 0

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Remember who reads the prompt."""
        self._readers.add(prefixes(pending_request.args[0].prompt_token_ids), replica_id)
