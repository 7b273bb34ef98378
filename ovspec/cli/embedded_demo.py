"""`ovspec demo --embedded`: plain decoding and ways to speed it up, with the embedded pair, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import click

from ovspec.cli.generate import print_piece
from ovspec.cli.options.output import print_table, save_report
from ovspec.drafters import NONE, Assistant
from ovspec.eval.tables import table_of
from ovspec.generation.results import DecodedResults
from ovspec.modes.commit_verify import CommitVerify
from ovspec.modes.verify_mode import VerifyMode, why_lossy
from ovspec.pipeline.models.draft_model import draft_model
from ovspec.pipeline.pipeline import LLMPipeline
from ovspec_models import demo_pair_path
from ovspec_models.folder.sparse_verify import SparseVerify

_SPARSE = SparseVerify(L0=96, rho=0.1)


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to decode.

    Attributes:
        label: in the table.
        heading: what it does, in a line.
        draft: folder of the draft model or head in the demo's, if there is one.
        drafter: who drafts where no model does, or nobody.
        verify: how drafts are verified.
        options: of the call.
    """

    label: str
    heading: str
    draft: str | None = None
    drafter: str | None = None
    verify: VerifyMode = "dense"
    options: Mapping[str, Any] = field(default_factory=dict)

    def pipeline(self) -> LLMPipeline:
        """The pipeline of the embedded pair in this mode."""
        folder = demo_pair_path()
        draft = draft_model(folder / self.draft) if self.draft else None
        drafter = self.drafter or (NONE if draft is None else Assistant.name)
        return LLMPipeline(folder, "CPU", draft_model=draft, drafter=drafter, verify=self.verify)


_BUDGET = f"L0={_SPARSE.L0}, rho={_SPARSE.rho}"
_CHAIN = {"num_assistant_tokens": 4}
_TREE = {"num_assistant_tokens": 16, "tree_depth": 6, "branching_factor": 4}
MODES = (
    Mode("plain", "plain decoding: one token a pass"),
    Mode("dense", "dense verification of 4 draft tokens a pass: lossless", "draft", options=_CHAIN),
    Mode(
        "sparse",
        f"sparse verification, {_BUDGET}: LOSSY, reads part of the context",
        "draft",
        verify=_SPARSE,
        options=_CHAIN,
    ),
    Mode(
        "commit",
        f"sparse verification, {_BUDGET}, confirmed by dense passes: lossless",
        "draft",
        verify=CommitVerify(_SPARSE, 16),
        options=_CHAIN,
    ),
    Mode(
        "prompt_lookup",
        "drafts copied from prompt and output, verified densely: lossless",
        drafter="prompt_lookup",
        options=_CHAIN,
    ),
    Mode("eagle3", "drafts of an EAGLE-3 head, verified densely: lossless", "eagle3", options=_CHAIN),
    Mode("eagle3, tree", "trees of 16 tokens from the same head: lossless", "eagle3", options=_TREE),
)


def run_embedded(max_new_tokens: int, json_path: str | None) -> list[str]:
    """Show every mode; those that are lossless and whose text differs from the plain one."""
    as_json = json_path == "-"
    prompt = files("ovspec.cli").joinpath("demo_prompt.txt").read_text(encoding="utf-8").rstrip("\n")
    results: dict[str, DecodedResults] = {}
    for mode in MODES:
        pipeline = mode.pipeline()
        # One round unmeasured: kernels are built and weights are packed on first use.
        pipeline.generate(prompt, max_new_tokens=8, **mode.options)
        if not as_json:
            click.secho(f"\n{mode.heading}\n", bold=True)
            click.echo(click.style(f"...{prompt[-80:]}", dim=True), nl=False)
        results[mode.label] = pipeline.generate(
            [prompt], max_new_tokens=max_new_tokens, streamer=None if as_json else print_piece, **mode.options
        )
        if not as_json:
            click.echo()
    same = {label: result.texts == results["plain"].texts for label, result in results.items()}
    save_report({label: as_record(result, same[label]) for label, result in results.items()}, json_path)
    if not as_json:
        show(results, same)
    return [mode.label for mode in MODES if not why_lossy(mode.verify) and not same[mode.label]]


def as_record(result: DecodedResults, same: bool) -> dict[str, object]:
    """One mode's entry in the JSON output."""
    return {"text": result.texts[0], "same_as_plain": same, "metrics": result.perf_metrics.summary()}


def show(results: dict[str, DecodedResults], same: dict[str, bool]) -> None:
    """Print the comparison."""
    rows = []
    for label, result in results.items():
        found = result.perf_metrics
        speed, density = found.get_throughput().mean, found.get_attention_density()
        cells = (f"{speed:.0f}", f"{found.get_mean_acceptance_length():.2f}", f"{density:.2f}")
        rows.append((label, *cells, "yes" if same[label] else "no"))
    columns = ("", "tokens/s", "mean acceptance length", "attention density", "same text as plain")
    click.echo()
    print_table(table_of("Greedy; a model this small is bound by overhead, not by attention", columns, rows))
