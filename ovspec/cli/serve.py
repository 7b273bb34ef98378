"""`ovspec serve`: OpenAI's interface over HTTP."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from ovspec.cli.extras import need_extra
from ovspec.cli.help import ShortHelpCommand, option_group
from ovspec.cli.pipeline_options import (
    max_context_option,
    pipeline_options,
    prefix_option,
    serving_outline,
    serving_pipeline,
)
from ovspec.cli.ray_options import cluster_from, ray_options

COMMON = (
    *("model", "draft_model", "verify", "budget", "host", "port", "api_keys", "served_model_name"),
    *("chat_template", "max_num_seqs", "properties"),
)
_limit_options = option_group(
    "Limits",
    click.option(
        "--max-num-seqs",
        type=click.IntRange(1),
        default=16,
        show_default=True,
        help="Answers made at the same time.",
    ),
    click.option(
        "--max-queued",
        type=click.IntRange(0),
        default=64,
        show_default=True,
        help="Answers that wait beside them; more are refused with 429.",
    ),
    click.option(
        "--max-body-bytes", type=click.IntRange(1), default=8 * 2**20, show_default=True, help="Of a request."
    ),
    click.option(
        "--request-timeout",
        type=click.FloatRange(0, min_open=True),
        default=600.0,
        show_default=True,
        help="Seconds for an answer.",
    ),
    click.option(
        "--client-timeout",
        type=click.FloatRange(0, min_open=True),
        default=30.0,
        show_default=True,
        help="Seconds in which a client must send its body, and read some of what is sent to it.",
    ),
)


@click.command(cls=ShortHelpCommand, common=COMMON)
@click.option("--host", default="127.0.0.1", show_default=True, help="0.0.0.0: every address.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: any free one."
)
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
@click.option(
    "--chat-template", type=click.Path(path_type=Path), metavar="FILE", help="In place of the model's."
)
@_limit_options
@ray_options
@max_context_option
@prefix_option
@pipeline_options
def serve(**options: Any) -> None:
    """Serve a model with OpenAI's interface, a page for people at /, and metrics for Prometheus.

    SIGTERM or Ctrl-C ends it: what runs is finished, a second one gives it up. Paths: /v1/chat/completions,
    /v1/completions, /v1/models, /tokenize, /detokenize, /health, /metrics.
    """
    need_extra("serve", "starlette", "uvicorn", "prometheus_client", "pydantic")
    # Imported now: this module is loaded for help too, which needs no extra.
    from ovspec.serve.backend import in_this_process
    from ovspec.serve.limits import Limits
    from ovspec.serve.start import ServerSettings, start

    # click takes an empty variable for none, and splits it at spaces: either would open the server.
    key = os.environ.get("OVSPEC_API_KEY")
    if key is not None and not options["api_keys"]:
        options["api_keys"] = (key,)
    limits = Limits(
        **{entry.name: options.pop(entry.name) for entry in fields(Limits)},
    )
    cluster, name = cluster_from(options), options.pop("served_model_name")
    settings = ServerSettings(
        host=options.pop("host"),
        port=options.pop("port"),
        keys=options.pop("api_keys"),
        origins=options.pop("origins"),
        name=name or options["model"].resolve().name,
        chat_template=options.pop("chat_template"),
        limits=limits,
    )
    load = partial(serving_pipeline, options)
    if cluster is None:
        start(settings, options["model"], in_this_process(load, limits.max_num_seqs))
        return
    from ovspec.serve.cluster.cluster import ClusterSettings, on_cluster

    wide = replace(settings, limits=replace(limits, max_num_seqs=cluster[1] * limits.max_num_seqs))
    replicas, outline = ClusterSettings(*cluster), serving_outline(options)
    backend = on_cluster(settings.name, load, outline, replicas, limits.max_num_seqs, limits.request_timeout)
    start(wide, options["model"], backend)
