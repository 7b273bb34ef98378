"""`ovspec eval fidelity`: verification settings against dense decoding, on the user's prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ovspec.eval.divergence import Decision, first_divergence, margin
from ovspec.eval.greedy import greedy, warm_up
from ovspec.eval.in_force import SelectionInForce
from ovspec.eval.prompts import Prompt
from ovspec.eval.report import Report, precisions
from ovspec.eval.results import Outcome, Reference, Result, tokens_per_s
from ovspec.eval.setting import Setting
from ovspec.eval.teacher_forcing import TeacherForcing
from ovspec.generation.generation_config import GenerationSettings
from ovspec.generation.metrics import PerfMetrics
from ovspec.generation.results import EncodedResults
from ovspec.modes.verify_mode import VerifyMode, sparse_part
from ovspec.pipeline.pipeline import LLMPipeline
from ovspec_models import ModelInfo

ReferenceMode = Literal["dense", "plain"]
# Makes the pipeline of a verification mode; the other arguments: whether it drafts, and whether it reads
# prompts as asked for or densely.
MakePipeline = Callable[[VerifyMode, bool, bool], LLMPipeline]
OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class FidelityEval:
    """Compares settings with dense decoding under greedy decoding, in two ways.

    * Free running: both generate; tokens and speed are compared. The reference and the settings take turns
      prompt by prompt, so that a change of the machine's speed affects all of them.
    * Teacher forcing (`TeacherForcing`): the distributions at every position of the reference's output are
      compared. The first token is left out, because it comes from the prefill.

    Args:
        make_pipeline: makes pipelines of that target that differ in verification and drafting only.
        settings: at least one; they may differ in the amounts, not in the graph.
        drafter: name of what drafts, for the report; `None` decodes without drafts.
        draft_model: folder of the draft model, for the report.
        drafting: fields of the generation configuration for the drafter.
        reference: dense verification of the same drafts, or plain decoding.
        max_new_tokens: tokens per prompt, at least 2.
        context: largest number of tokens of a prompt; the last ones are kept. `None`: no limit.
        low_margin: dense margin in nats below which a decision counts as one of low margin.
    """

    model: Path
    make_pipeline: MakePipeline
    prompts: Sequence[Prompt]
    settings: Sequence[Setting]
    drafter: str | None = None
    draft_model: Path | None = None
    drafting: Mapping[str, Any] = field(default_factory=dict)
    reference: ReferenceMode = "dense"
    max_new_tokens: int = 128
    context: int | None = None
    low_margin: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.low_margin < np.inf:
            raise ValueError(
                f"low_margin={self.low_margin:g}: expected a difference of log-probabilities, at least 0"
            )

    @property
    def num_steps(self) -> int:
        """Number of times that `run` calls `on_step`."""
        return 2 + len(self.prompts) * (2 + 2 * len(self.settings))

    def run(self, on_step: OnStep) -> Report:
        """Measure everything; `on_step` is called with a description of each step."""
        info = ModelInfo.read(self.model)
        drafts = self.drafter is not None
        on_step("load the reference")
        dense = self.make_pipeline("dense", drafts and self.reference == "dense", False)
        on_step("load the settings")
        tested = self.make_pipeline(self.settings[0].verify, drafts, True)
        in_force = []
        for setting in self.settings:
            # Refuse unsupported settings before the measurement starts.
            tested.verify = setting.verify
            in_force.append(Setting(tested.verify, tested.prefill))
        settings = tested.settings(**self.drafting, do_sample=False, max_new_tokens=self.max_new_tokens)
        encoded = [self._encode(tested, prompt, settings, info) for prompt in self.prompts]
        for pipeline in (dense, tested):
            warm_up(pipeline, encoded[0], self.drafting)
        references: list[Reference] = []
        outcomes: list[list[Outcome]] = [[] for _ in self.settings]
        totals = [PerfMetrics() for _ in range(1 + len(self.settings))]
        for index, (prompt, ids) in enumerate(zip(self.prompts, encoded, strict=True)):

            def announce(step: str, line: int = prompt.line) -> None:
                on_step(f"line {line}: {step}")

            outputs = self._take_turns(dense, tested, ids, index, announce)
            totals = [total + output.perf_metrics for total, output in zip(totals, outputs, strict=True)]
            reference = Reference(
                prompt.line, len(ids), outputs[0].tokens[0], tokens_per_s(outputs[0].perf_metrics)
            )
            references.append(reference)
            first_margin, found = self._decisions(tested, settings, ids, reference.tokens, announce)
            for mine, output, decisions in zip(outcomes, outputs[1:], found, strict=True):
                mine.append(_outcome(reference, output, decisions, first_margin))
        return Report(
            model=info,
            drafter=self.drafter,
            draft_model=self.draft_model,
            reference=self.reference,
            num_assistant_tokens=settings.num_assistant_tokens,
            max_new_tokens=self.max_new_tokens,
            context=self.context,
            low_margin=self.low_margin,
            precisions=precisions(tested.runner),
            references=references,
            reference_metrics=totals[0],
            results=[
                Result(setting, mine, total)
                for setting, mine, total in zip(in_force, outcomes, totals[1:], strict=True)
            ],
            selection=SelectionInForce.of(tested.runner),
        )

    def _encode(
        self, pipeline: LLMPipeline, prompt: Prompt, settings: GenerationSettings, info: ModelInfo
    ) -> list[int]:
        ids = pipeline.chat_prompts.encode(prompt.text, settings.apply_chat_template)
        if self.context is not None:
            ids = ids[-self.context :]
        positions = info.max_position_embeddings
        if positions is not None and len(ids) >= positions:
            raise ValueError(
                f"the prompt in line {prompt.line} has {len(ids)} tokens, the model {positions} positions; "
                "cut prompts with --context"
            )
        return ids

    def _take_turns(
        self, dense: LLMPipeline, tested: LLMPipeline, ids: list[int], index: int, announce: OnStep
    ) -> list[EncodedResults]:
        """The outputs of the reference and of every setting; the order rotates from prompt to prompt."""
        count = 1 + len(self.settings)
        outputs: dict[int, EncodedResults] = {}
        for turn in ((index + offset) % count for offset in range(count)):
            if turn == 0:
                announce(f"generate, {self.reference}")
                outputs[turn] = greedy(dense, ids, self.max_new_tokens, self.drafting)
            else:
                setting = self.settings[turn - 1]
                announce(f"generate, {setting.name}")
                tested.verify = setting.verify
                outputs[turn] = greedy(tested, ids, self.max_new_tokens, self.drafting, lossy=True)
        return [outputs[turn] for turn in range(count)]

    def _decisions(
        self,
        pipeline: LLMPipeline,
        settings: GenerationSettings,
        ids: list[int],
        tokens: list[int],
        announce: OnStep,
    ) -> tuple[float, list[list[Decision]]]:
        """The dense margin of the first token; and of every setting, its decisions about the others."""
        announce("verify its tokens, dense")
        forcing = TeacherForcing(pipeline.runner, settings, ids, tokens)
        try:
            found = []
            for setting in self.settings:
                announce(f"verify its tokens, {setting.name}")
                pipeline.verify = setting.verify
                # With calibrated values filled in.
                found.append(forcing.decisions(sparse_part(pipeline.verify)))
        finally:
            forcing.release()
        return margin(forcing.first), found


def _outcome(
    reference: Reference, output: EncodedResults, decisions: list[Decision], first_margin: float
) -> Outcome:
    tokens, speed = output.tokens[0], tokens_per_s(output.perf_metrics)
    index = first_divergence(reference.tokens, tokens)
    margins = [first_margin, *(decision.margin for decision in decisions)]
    return Outcome(
        num_tokens=len(tokens),
        first_divergence=index,
        divergence_margin=None if index is None else margins[index],
        tokens_per_s=speed,
        speedup=None if speed is None or reference.tokens_per_s is None else speed / reference.tokens_per_s,
        decisions=decisions,
    )
