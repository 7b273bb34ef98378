"""`ovspec bench schedule`: replay a trace of offers under several policies of drafting."""

from __future__ import annotations

from pathlib import Path

import click

from ovspec.bench.offers import OfferTrace
from ovspec.bench.replay import Policy
from ovspec.bench.schedule import POLICIES, ScheduleBench
from ovspec.cli.options.bench import check_outputs, run_and_show
from ovspec.cli.options.common import (
    draft_folder,
    json_option,
    model_option,
    properties_from,
    property_option,
)
from ovspec.cli.options.forms import PATH, default_option, typed_option
from ovspec_models import ModelInfo


@click.command()
@model_option
@typed_option("--trace", PATH, "A file of `ovspec bench trace --offers`.", required=True, metavar="FILE")
@default_option("--draft-model", "auto", "As in `ovspec generate`; where the trace has its offers.")
@default_option("--policy", ",".join(POLICIES), "What to replay.")
@property_option
@json_option
def schedule(
    model: Path,
    trace: Path,
    draft_model: str,
    policy: str,
    properties: tuple[str, ...],
    json_path: str | None,
) -> None:
    """Compute tokens/s of policies of drafting, from what drafters offered on real answers.

    plain: no drafts. lookup (prompt_lookup), suffix, assistant: a drafter, in suffix:4 with 4 tokens in
    every round, else as the schedule auto decides. auto: the drafter auto. What a pass costs by its rows is
    measured first; all policies see the same answers and the same costs.
    """
    check_outputs(json_path)
    ModelInfo.read(model)
    found = OfferTrace.load(trace)
    has_model = any("assistant" in answer.offers for answer in found.answers)
    draft = draft_folder(model, draft_model) if has_model else None
    policies = tuple(map(Policy, policy.split(",")))
    run_and_show(ScheduleBench(model, draft, found, policies, properties_from(properties)), json_path)
