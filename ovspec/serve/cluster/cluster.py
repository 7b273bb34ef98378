"""The replicas of a server on a Ray cluster."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import AutoscalingConfig, RequestRouterConfig

from ovspec.pipeline.loaded_pipeline import LoadedPipeline
from ovspec.pipeline.outline import Outline
from ovspec.serve.backend import Backend
from ovspec.serve.cluster.cluster_engine import ClusterEngine
from ovspec.serve.cluster.replica import Replica
from ovspec.serve.cluster.router import PrefixRouter


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """How many replicas a cluster is to run.

    Attributes:
        least: that always run.
        most: that run under load.
        upscale_seconds: of more load until a replica is added; Ray Serve's own default.
        downscale_seconds: of less load until one ends; likewise.
    """

    least: int
    most: int
    cpus: float
    upscale_seconds: float = 30.0
    downscale_seconds: float = 600.0


def connect() -> None:
    """Join the cluster of `RAY_ADDRESS` or of this machine; without one, start one here.

    Raises:
        ValueError: none answers, or none can be started.
    """
    # Ray itself ends the process when nobody listens at a head's address.
    host, _, port = os.environ.get("RAY_ADDRESS", "").rpartition(":")
    try:
        if port.isdigit() and "/" not in host:
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(include_dashboard=False, logging_level="warning", log_to_driver=False)
    except Exception as error:  # of no kind of its own where a process of Ray starts too slowly
        said = " ".join(str(error).split())
        raise ValueError(f"--ray: no Ray cluster ({said}); start one, or correct RAY_ADDRESS") from error


@contextmanager
def on_cluster(
    name: str,
    load: Callable[[], LoadedPipeline],
    requests: Outline,
    settings: ClusterSettings,
    max_num_seqs: int,
    seconds: float,
) -> Iterator[Backend]:
    """Replicas, until the block ends.

    Args:
        name: of the model. One server at a time has it; the replicas of one that was killed are taken over.
        requests: makes the settings of requests, here.
        max_num_seqs: requests that one runs at a time.
        seconds: that a replica which is no longer needed has to end its answers.

    Raises:
        ValueError: another server has the name, or the replicas can't be started.
    """
    deployment = serve.deployment(
        name="replica",
        ray_actor_options={"num_cpus": settings.cpus},
        # As many again wait in the replica, so that its engine never waits for the next one.
        max_ongoing_requests=2 * max_num_seqs,
        autoscaling_config=AutoscalingConfig(
            min_replicas=settings.least,
            max_replicas=settings.most,
            target_ongoing_requests=max_num_seqs,
            upscale_delay_s=settings.upscale_seconds,
            downscale_delay_s=settings.downscale_seconds,
        ),
        graceful_shutdown_timeout_s=seconds,
        request_router_config=RequestRouterConfig(request_router_class=PrefixRouter),
    )(Replica)
    connect()
    owner = _own(name)
    serve.start(proxy_location="Disabled")  # the server's own process speaks HTTP
    app = f"ovspec-{name}"
    try:
        handle = serve.run(deployment.bind(load, max_num_seqs), name=app, route_prefix=None)
    except RuntimeError as error:
        serve.delete(app)
        message = str(serve.status()) if not str(error) else str(error)
        raise ValueError(f"--ray: the replicas do not start: {message.strip().splitlines()[-1]}") from error
    engine = ClusterEngine(handle.options(stream=True), lambda: _num_running(app))
    try:
        yield Backend(requests, engine, {"num_requests_running": lambda: engine.num_requests})
    finally:
        engine.close()
        serve.delete(app)
        ray.kill(owner)
        ray.shutdown()


class _Owner:
    """An actor that lives as long as its server: its name says that the server's name is taken."""


def _own(name: str) -> Any:
    """Take a name on the cluster.

    Raises:
        ValueError: another server has it.
    """
    try:
        return ray.remote(num_cpus=0)(_Owner).options(name=name, namespace="ovspec").remote()
    except ValueError as error:
        ray.shutdown()
        raise ValueError(
            f"--served-model-name {name}: another server has this name on the cluster; end it, or give "
            "another name"
        ) from error


def _num_running(app: str) -> int:
    """Replicas of an application that run; none where the cluster does not answer."""
    try:
        found = serve.status().applications.get(app)
    except RayError:
        return 0
    return found.deployments["replica"].replica_states.get("RUNNING", 0) if found else 0
