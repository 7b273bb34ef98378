"""Drafts verified by the target, which reads no document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ovspec.errors import InvalidValueError
from ovspec.eval.scoring import Scorer
from ovspec.pipeline.pipeline import LLMPipeline
from ovspec.rag.prompts import Prompts


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target says of a draft; natural logarithms.

    Attributes:
        rho_sc: self-consistency, log P(answer, rationale | question).
        rho_sr: self-reflection, log P("Yes" | question, answer, rationale, reflection).
    """

    rho_sc: float
    rho_sr: float


@dataclass(frozen=True, slots=True)
class Verification:
    """What the target says of drafts, in their order.

    Attributes:
        num_read: tokens that the target computed.
    """

    verdicts: list[Verdict]
    num_read: int


def verify(
    target: LLMPipeline, question: str, drafts: Sequence[tuple[str, str]], shared: bool = True
) -> Verification:
    """Score drafts, each an answer and its rationale, in one batch.

    Args:
        shared: whether the target reads the question once for all drafts; else once for each.

    Raises:
        InvalidValueError: a draft has no room in the target's positions.
        PipelineBusyError: other calls to the target run.
    """
    prompts = Prompts(target)
    candidates = [prompts.candidate(question, answer, rationale) for answer, rationale in drafts]
    continuations = [[*found.draft, *found.reflection, *found.yes] for found in candidates]
    longest = len(candidates[0].question) + max(map(len, continuations))
    if longest > target.max_model_len:
        raise InvalidValueError(
            f"a draft has {longest} tokens with its question, the target {target.max_model_len} positions; "
            "ask for shorter rationales and answers"
        )
    with target.alone("verifying drafts"):
        scores = Scorer(target).score_all(candidates[0].question, continuations, shared)
    verdicts = [
        Verdict(float(logprobs[: len(found.draft)].sum()), float(logprobs[-len(found.yes) :].sum()))
        for found, logprobs in zip(candidates, scores.logprobs, strict=True)
    ]
    return Verification(verdicts, scores.num_read)
