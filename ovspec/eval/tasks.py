"""`ovspec eval tasks`: what lossy settings do to answers with references, each beside dense decoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openvino_genai import ChatHistory

from ovspec.eval.divergence import Decision
from ovspec.eval.greedy import greedy, warm_up
from ovspec.eval.in_force import SelectionInForce, prefill_in_force, verify_in_force
from ovspec.eval.results import tokens_per_s
from ovspec.eval.scores import METRICS
from ovspec.eval.setting import Setting
from ovspec.eval.suites import Example
from ovspec.eval.task_results import Answer, Pair, Run
from ovspec.eval.task_settings import NamedSetting
from ovspec.eval.tasks_report import TasksReport
from ovspec.eval.teacher_forcing import TeacherForcing
from ovspec.generation.inputs import tokenized
from ovspec.modes.verify_mode import sparse_part
from ovspec.pipeline.pipeline import LLMPipeline
from ovspec_models import ModelInfo

# Makes the pipeline of a setting.
MakePipeline = Callable[[Setting], LLMPipeline]
OnStep = Callable[[str], None]
DENSE = Setting("dense")
# Answers may have so many tokens, by what they are compared with.
_NEW_TOKENS = {"rouge_l": 128, "number": 256}
_SHORT_ANSWER, _NO_SCORE = 32, 128
# Of a reference, so many are read.
_REFERENCE_TOKENS = 256


@dataclass(frozen=True, slots=True)
class TasksEval:
    """Compares settings with dense decoding under greedy decoding, task by task.

    For every setting, a dense pipeline and the setting's answer every example in turns, one after the other,
    so that scores, speed and acceptance are of pairs. Then both read the reference behind the prompt in
    passes of verification (`TeacherForcing`): the likelihood of a text that the model may not be able to
    write, and the KL on it. The last token of the prompt is read in the first of these passes.

    Args:
        make_pipeline: makes pipelines of that target that differ in the setting only.
        settings: at least one.
        examples: at least one.
        left_out: why other settings are not measured, one sentence each.
        drafter: name of what drafts, for the report; `None` decodes without drafts.
        drafting: fields of the generation configuration for the drafter.
        max_new_tokens: tokens of an answer; `None`: 32 for short answers, 128 for summaries, 256 for numbers.
        context: largest number of tokens of a prompt, which are cut out of its middle; `None`: no limit.
    """

    model: Path
    make_pipeline: MakePipeline
    settings: Sequence[NamedSetting]
    examples: Sequence[Example]
    left_out: Sequence[str] = ()
    drafter: str | None = None
    drafting: Mapping[str, Any] = field(default_factory=dict)
    max_new_tokens: int | None = None
    context: int | None = None

    @property
    def num_steps(self) -> int:
        """Number of times that `run` calls `on_step`."""
        return 1 + len(self.settings) * (1 + len(self.examples))

    def run(self, on_step: OnStep) -> TasksReport:
        """Measure everything; `on_step` is called with a description of each step.

        Raises:
            ValueError: a setting that the model can't have, a chat without a chat template, or a prompt
                that is too long.
        """
        on_step("check settings and prompts")
        for named in self.settings:
            # Refuse what can't be measured before the measurement starts.
            pipeline = self.make_pipeline(named.setting)
            pipeline.settings(**self.drafting, do_sample=False, max_new_tokens=1)
        encoded = [self._encode(pipeline, example) for example in self.examples]
        del pipeline
        runs = [self._measure(named, encoded, on_step) for named in self.settings]
        return TasksReport(
            model=ModelInfo.read(self.model),
            drafter=self.drafter,
            context=self.context,
            runs=runs,
            left_out=self.left_out,
        )

    def _measure(self, named: NamedSetting, encoded: Sequence[list[int]], on_step: OnStep) -> Run:
        """The pairs of one setting.

        Both pipelines are new, so that neither has prompts in its prefix cache; they are gone at the end, so
        that memory holds two at a time.
        """
        on_step(f"load {named.name}")
        dense, tested = self.make_pipeline(DENSE), self.make_pipeline(named.setting)
        for pipeline in (dense, tested):
            warm_up(pipeline, encoded[0], self.drafting)
        pairs = []
        for turn, (example, ids) in enumerate(zip(self.examples, encoded, strict=True)):
            on_step(f"{named.name}: {example.task}, {turn + 1} of {len(encoded)}")
            pairs.append(self._pair(dense, tested, example, ids, turn))
        verify = verify_in_force(tested.verify, SelectionInForce.of(tested.runner))
        return Run(named, verify, prefill_in_force(tested.prefill), pairs)

    def _encode(self, pipeline: LLMPipeline, example: Example) -> list[int]:
        """Token ids of a prompt as the model gets it."""
        prompts = pipeline.chat_prompts
        if isinstance(example.prompt, str):
            ids = prompts.encode(example.prompt, pipeline.get_generation_config().apply_chat_template)
        else:
            if not pipeline.get_tokenizer().chat_template:
                raise ValueError(
                    f"{example.place} has messages, and the model no chat template; give a prompt"
                )
            ids = prompts.tokenized(prompts.templated(ChatHistory(list(example.prompt))))
        if self.context is not None and len(ids) > self.context:
            front = self.context // 2
            ids = [*ids[:front], *ids[len(ids) - (self.context - front) :]]
        if len(ids) < 2:
            raise ValueError(f"{example.place}: the prompt has {len(ids)} tokens, expected at least 2")
        room = pipeline.max_model_len - max(self._new_tokens(example), _REFERENCE_TOKENS)
        if len(ids) > room:
            remedy = "cut prompts with --context" if room > 1 else "give a smaller --max-new-tokens"
            raise ValueError(
                f"{example.place}: the prompt has {len(ids)} tokens, and beside answer and reference the "
                f"model has positions for {max(0, room)}; {remedy}"
            )
        return ids

    def _new_tokens(self, example: Example) -> int:
        if self.max_new_tokens is not None:
            return self.max_new_tokens
        if not example.metrics:
            return _NO_SCORE
        return max(_NEW_TOKENS.get(metric, _SHORT_ANSWER) for metric in example.metrics)

    def _pair(
        self, dense: LLMPipeline, tested: LLMPipeline, example: Example, ids: list[int], turn: int
    ) -> Pair:
        """Both answers, the order changes with the turn; and what the setting makes of the reference."""
        answers = dict[bool, Answer]()
        for lossy in (False, True) if turn % 2 == 0 else (True, False):
            answers[lossy] = self._answer(tested if lossy else dense, example, ids, lossy)
        text = self._reference(tested, example)
        follows = text or answers[False].tokens[:_REFERENCE_TOKENS]
        decisions = self._decisions(tested, ids, follows)
        return Pair(example, len(ids), answers[False], answers[True], decisions, of_reference=bool(text))

    def _answer(self, pipeline: LLMPipeline, example: Example, ids: list[int], lossy: bool) -> Answer:
        found = greedy(pipeline, ids, self._new_tokens(example), self.drafting, lossy)
        tokens, metrics = found.tokens[0], found.perf_metrics
        text = str(pipeline.get_tokenizer().decode(tokens))
        speed = tokens_per_s(metrics)
        return Answer(
            text=text,
            tokens=tokens,
            scores=tuple(METRICS[metric](text, example.answers) for metric in example.metrics),
            seconds=0.0 if speed is None else (len(tokens) - 1) / speed,
            first_token_s=metrics.get_ttft().mean / 1e3,
            metrics=metrics,
        )

    def _reference(self, pipeline: LLMPipeline, example: Example) -> list[int]:
        """The first tokens of the reference text, as they follow the prompt; empty without one."""
        if not example.reference.strip():
            return []
        template = pipeline.get_generation_config().apply_chat_template
        has = template and bool(pipeline.get_tokenizer().chat_template)
        chat = has or not isinstance(example.prompt, str)
        text = example.reference.strip() if chat else f" {example.reference.strip()}"
        return tokenized(pipeline.get_tokenizer(), text, special_tokens=False)[:_REFERENCE_TOKENS]

    def _decisions(self, pipeline: LLMPipeline, ids: list[int], text: list[int]) -> list[Decision]:
        """The setting compared with dense passes at every token of a text behind the prompt."""
        settings = pipeline.settings(
            **self.drafting, do_sample=False, max_new_tokens=len(text) + 1, ignore_eos=True
        )
        forcing = TeacherForcing(pipeline.runner, settings, ids[:-1], [ids[-1], *text])
        try:
            return forcing.decisions(sparse_part(pipeline.verify))
        finally:
            forcing.release()
