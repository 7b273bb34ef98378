"""`ovspec demo` with SmolLM2: OpenVINO GenAI and the modes of ovspec on the same files."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import click
import openvino_genai

from ovspec.cli.options.output import print_table, save_report, say, warn, with_progress
from ovspec.drafters import NONE, Auto
from ovspec.eval.tables import table_of
from ovspec.modes.commit_verify import CommitVerify
from ovspec.modes.verify_mode import VerifyMode, why_lossy
from ovspec.pipeline.models.draft_model import draft_model
from ovspec.pipeline.pipeline import LLMPipeline
from ovspec_models.folder.sparse_verify import SparseVerify
from ovspec_models.sources.demo_model import demo_head_path, demo_model_path

_QUESTION = "\n\nRetell the beginning of this story. Quote its own words where you can."
_WARM_TOKENS = 48
_SHORT = {
    "question": "Why is the sky blue?",
    "instructions": "Explain step by step how to make a cup of tea.",
    "rewriting": (
        "Correct the mistakes in this text, and repeat it otherwise unchanged: The libary opens at nine in "
        "the morning. It closes at six in the evning. On Sundays the libary is closed. Books can be "
        "borrowed for four weeks, and returnd at any time."
    ),
}


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to decode.

    Attributes:
        label: in the table.
        genai: by OpenVINO GenAI, which has no other of these but prompt lookup.
        drafter: who drafts; `None`: nobody; "auto": the head that the package carries, or the text where it
            repeats itself.
        verify: how drafts are verified.
        options: of a call.
    """

    label: str
    genai: bool = False
    drafter: str | None = None
    verify: VerifyMode = "dense"
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def plain(self) -> str:
        """The label of plain decoding by the same library."""
        return MODES[0].label if self.genai else MODES[2].label

    def pipeline(self, folder: Path) -> Any:
        """The pipeline of a model in this mode."""
        if self.genai:
            lookup = {"prompt_lookup": True} if self.drafter else {}
            return openvino_genai.LLMPipeline(str(folder), "CPU", **lookup)
        head = draft_model(demo_head_path()) if self.drafter == Auto.name else None
        return LLMPipeline(folder, "CPU", draft_model=head, drafter=self.drafter or NONE, verify=self.verify)


_EIGHT = {"num_assistant_tokens": 8}
_LOOKUP = {**_EIGHT, "max_ngram_size": 3}
MODES = (
    Mode("GenAI, plain", genai=True),
    Mode("GenAI, prompt lookup", genai=True, drafter="prompt_lookup", options=_LOOKUP),
    Mode("ovspec, plain"),
    Mode("ovspec, prompt lookup", drafter="prompt_lookup", options=_LOOKUP),
    Mode("ovspec, suffix", drafter="suffix", options=_EIGHT),
    Mode("ovspec, EAGLE-3 head", drafter=Auto.name),
    Mode("ovspec, committed", drafter="suffix", verify=CommitVerify(SparseVerify()), options=_EIGHT),
    Mode("ovspec, sparse (lossy)", drafter="suffix", verify=SparseVerify(), options=_EIGHT),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of one mode, with its figures.

    Attributes:
        tokens_per_second: behind the first token.
        tokens_per_pass: of the target; `None`: the library does not say.
        density: share of the context that verification read.
    """

    mode: str
    prompt: str
    text: str
    tokens_per_second: float
    ttft_ms: float
    tokens_per_pass: float | None
    density: float


def run_real(max_new_tokens: int, json_path: str | None) -> list[str]:
    """Show every mode; those that are lossless and whose text differs from the plain one."""
    folder = demo_model_path(report=say, warn=warn)
    story = files("ovspec.cli").joinpath("demo_story.txt").read_text(encoding="utf-8")
    prompts = {"story": story + _QUESTION, **_SHORT}
    answers = with_progress(
        len(MODES) * len(prompts), lambda step: measure(folder, prompts, max_new_tokens, step)
    )
    same = {mode.label: _texts(answers, mode.label) == _texts(answers, mode.plain) for mode in MODES}
    records = [asdict(answer) for answer in answers]
    save_report({"answers": records, "same_as_plain": same}, json_path)
    if json_path != "-":
        show(answers, same)
    lossless = (mode for mode in MODES if not mode.genai and not why_lossy(mode.verify))
    return [mode.label for mode in lossless if not same[mode.label]]


def measure(
    folder: Path, prompts: Mapping[str, str], max_new_tokens: int, step: Callable[[str], None]
) -> list[Answer]:
    """The answers of every mode to every prompt, greedy; a mode's pipeline is gone before the next one's.

    Args:
        step: called with what comes next.
    """
    answers = []
    for mode in MODES:
        pipeline = None
        for name, prompt in prompts.items():
            step(f"{mode.label}: {name}")
            if pipeline is None:
                pipeline = mode.pipeline(folder)
                # Unmeasured: the first answer finds memory that nobody has touched yet.
                pipeline.generate(_SHORT["question"], max_new_tokens=_WARM_TOKENS, **mode.options)
            result = pipeline.generate([prompt], max_new_tokens=max_new_tokens, **mode.options)
            found = result.perf_metrics
            answers.append(
                Answer(
                    mode.label,
                    name,
                    result.texts[0],
                    found.get_throughput().mean,
                    found.get_ttft().mean,
                    None if mode.genai else found.get_mean_acceptance_length(),
                    1.0 if mode.genai else found.get_attention_density(),
                )
            )
        del pipeline
    return answers


def _texts(answers: list[Answer], label: str) -> list[str]:
    return [answer.text for answer in answers if answer.mode == label]


def show(answers: list[Answer], same: Mapping[str, bool]) -> None:
    """Print what plain decoding wrote, and the comparison."""
    plain = [answer for answer in answers if answer.mode == MODES[2].label]
    for answer in plain:
        click.secho(f"\n{answer.prompt}", bold=True)
        click.echo(answer.text.strip())
    rows = []
    for mode in MODES:
        own = [answer for answer in answers if answer.mode == mode.label]
        long, *short = own
        per_pass = "-" if long.tokens_per_pass is None else f"{long.tokens_per_pass:.2f}"
        speeds = (
            f"{long.tokens_per_second:.0f}",
            f"{statistics.mean(a.tokens_per_second for a in short):.0f}",
        )
        figures = (*speeds, per_pass, f"{long.ttft_ms / 1e3:.2f}", f"{long.density:.2f}")
        rows.append((mode.label, *figures, "yes" if same[mode.label] else "no"))
    columns = ("", "story", "short prompts", "tokens per pass", "first token s", "share read", "same text")
    title = (
        "SmolLM2-135M-Instruct, greedy: tokens/s behind a story of 6,000 tokens, and behind three short\n"
        "prompts; tokens per pass, time to the first token and share read are those of the story"
    )
    click.echo()
    print_table(table_of(title, columns, rows))
