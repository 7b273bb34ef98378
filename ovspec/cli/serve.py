"""`ovspec serve`: OpenAI's interface over HTTP."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from functools import partial
from typing import Any

import click

from ovspec.cli.options.adapters import beside, served_adapter_option, served_adapters
from ovspec.cli.options.common import cache_size_option
from ovspec.cli.options.extras import need_extra
from ovspec.cli.options.forms import COUNT, PATH, SECONDS, default_option, typed_option
from ovspec.cli.options.help import ShortHelpCommand, option_group
from ovspec.cli.options.pipeline import (
    max_context_option,
    pipeline_options,
    prefix_option,
    serving_outline,
    serving_pipeline,
    serving_pipeline_as,
)
from ovspec.cli.options.ray import cluster_from, ray_options, replicas_of_a_machine
from ovspec.pipeline.pipeline import LLMPipeline
from ovspec_models.folder.graph_files import text_embedding_of
from ovspec_models.sources import model_name

COMMON = (
    *("model", "draft_model", "verify", "budget", "host", "port", "api_keys", "served_model_name"),
    *("chat_template", "max_num_seqs", "properties"),
)
_limit_options = option_group(
    "Limits",
    default_option("--max-num-seqs", 16, "Answers made at the same time.", type=COUNT),
    default_option(
        "--max-queued",
        64,
        "Answers that wait beside them; more are refused with 429.",
        type=click.IntRange(0),
    ),
    default_option("--max-body-bytes", 8 * 2**20, "Of a request.", type=COUNT),
    default_option("--request-timeout", 600.0, "Seconds for an answer.", type=SECONDS),
    default_option(
        "--client-timeout",
        30.0,
        "Seconds in which a client must send its body, and read some of what is sent to it.",
        type=SECONDS,
    ),
)


_SETTINGS = (
    *("host", "port", "origins", "chat_template", "log_level", "strict_fields"),
    "allowed_local_media_path",
)


@click.command(cls=ShortHelpCommand, common=COMMON)
@default_option("--host", "127.0.0.1", "0.0.0.0: every address.")
@default_option("--port", 8000, "0: any free one.", type=click.IntRange(0, 65535))
@click.option(
    "--api-key",
    "api_keys",
    multiple=True,
    metavar="KEY",
    help="Serve only who sends it.  [env: OVSPEC_API_KEY]",
)
@click.option(
    "--cors-origin",
    "origins",
    multiple=True,
    metavar="ORIGIN",
    help="Origin of pages that may call from a browser, e.g. https://example.org; repeatable.  [none]",
)
@click.option("--served-model-name", metavar="NAME", help="[default: the folder's name]")
@default_option(
    "--log-level",
    "info",
    "info: a line for every request.",
    type=click.Choice(["critical", "error", "warning", "info", "debug", "trace"]),
    metavar="LEVEL",
)
@click.option(
    "--strict-fields",
    is_flag=True,
    help="Refuse bodies with unknown fields; else these are ignored, and named in X-Ignored-Fields.",
)
@typed_option("--chat-template", PATH, "In place of the model's.", metavar="FILE")
@typed_option(
    "--allowed-local-media-path", PATH, "Folder whose files messages may name as pictures.  [default: none]"
)
@_limit_options
@typed_option(
    "--idle-unload",
    SECONDS,
    "Seconds without a request after which the model's memory is freed; the next request waits until it is "
    "loaded again.  [default: never]",
)
@ray_options
@cache_size_option
@max_context_option
@prefix_option
@served_adapter_option
@pipeline_options
def serve(**options: Any) -> None:
    """Serve a model with OpenAI's interface, a page for people at /, and metrics for Prometheus.

    SIGTERM or Ctrl-C ends it: what runs is finished, a second one gives it up. Paths: /v1/chat/completions,
    /v1/completions, /v1/responses, /v1/models (also under /v3), /tokenize, /detokenize, /health, /ping,
    /version, /metrics, /openapi.json.
    """
    need_extra("serve", "starlette", "uvicorn", "prometheus_client", "pydantic")
    # Imported now: this module is loaded for help too, which needs no extra.
    from ovspec.serve.backend import in_this_process, unloaded_when_idle
    from ovspec.serve.server_limits import ServerLimits
    from ovspec.serve.start import ServerSettings, start

    # click takes an empty variable for none, and splits it at spaces: either would open the server.
    key = os.environ.get("OVSPEC_API_KEY")
    if key is not None and not options["api_keys"]:
        options["api_keys"] = (key,)
    folder = options["allowed_local_media_path"]
    if folder is not None and not folder.is_dir():
        raise ValueError(f"--allowed-local-media-path {folder}: is no folder; give that of the pictures")
    limits = ServerLimits(**{entry.name: options.pop(entry.name) for entry in fields(ServerLimits)})
    idle_seconds = options.pop("idle_unload")
    if idle_seconds is not None and options["ray"]:
        raise ValueError(
            f"--idle-unload {idle_seconds:g}: replicas of a cluster stay loaded; leave it or --ray out"
        )
    # The outline that stands for a pipeline elsewhere, or for one that is unloaded, reads no pictures.
    takes_text_alone = idle_seconds is not None or options["ray"]
    if folder is not None and (takes_text_alone or text_embedding_of(options["model"]) is None):
        why = "--ray and --idle-unload take text alone" if takes_text_alone else "the model reads no pictures"
        raise ValueError(f"--allowed-local-media-path {folder}: {why}; leave it out")
    name = options.pop("served_model_name") or model_name(options["model"])
    adapters = served_adapters(options, name)
    options["adapters"] = beside(adapters)
    cluster = cluster_from(options)
    settings = ServerSettings(
        keys=options.pop("api_keys"),
        name=name,
        limits=limits,
        **{field: options.pop(field) for field in _SETTINGS},
    )
    bound = options.pop("cache_size")
    share = replicas_of_a_machine(cluster)
    make = partial(serving_pipeline_as, LLMPipeline) if takes_text_alone else serving_pipeline
    load = partial(make, options, limits.max_num_seqs, bound, share)
    if cluster is None:
        if idle_seconds is None:
            backend = in_this_process(load, limits.max_num_seqs)
        else:
            outline = serving_outline(options)
            backend = unloaded_when_idle(load, outline, limits.max_num_seqs, idle_seconds)
        start(settings, options["model"], backend, adapters)
        return
    from ovspec.serve.cluster.cluster import ClusterSettings, on_cluster

    wide = replace(settings, limits=replace(limits, max_num_seqs=cluster[1] * limits.max_num_seqs))
    replicas, outline = ClusterSettings(*cluster), serving_outline(options)
    backend = on_cluster(settings.name, load, outline, replicas, limits.max_num_seqs, limits.request_timeout)
    start(wide, options["model"], backend)
