"""Drafts: an answer with its rationale from each subset of documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ovspec.pipeline.pipeline import LLMPipeline
from ovspec.rag.generating import write
from ovspec.rag.prompts import ANSWER, Prompts


@dataclass(frozen=True, slots=True)
class Drafted:
    """A draft before anybody has verified it.

    Attributes:
        rho_draft: log P(rationale | question, documents) + log P(answer | question, documents, rationale),
            under the drafter.
        num_read: tokens that the drafter computed for it.
    """

    answer: str
    rationale: str
    rho_draft: float
    num_read: int


def draft(
    drafter: LLMPipeline,
    question: str,
    subsets: Sequence[Sequence[str]],
    max_rationale_tokens: int,
    max_answer_tokens: int,
) -> list[Drafted]:
    """Write a draft from each subset of texts: all rationales in one batch, then all answers behind them.

    So every draft has both, whether the model keeps to a form or not.
    """
    prompts = Prompts(drafter)
    begun = [prompts.draft(question, texts) for texts in subsets]
    rationales = write(drafter, begun, ANSWER, max_rationale_tokens)
    continued = [
        prompts.answer(prompt, written.tokens) for prompt, written in zip(begun, rationales, strict=True)
    ]
    answers = write(drafter, continued, "\n", max_answer_tokens)
    return [
        Drafted(
            answer.text,
            rationale.text,
            rationale.logprob + answer.logprob,
            rationale.num_read + answer.num_read,
        )
        for rationale, answer in zip(rationales, answers, strict=True)
    ]
