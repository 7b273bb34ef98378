"""Plain and speculative RAG on the same questions: accuracy, latency, tokens that the target reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ovspec.errors import InvalidValueError
from ovspec.eval.scores import contains
from ovspec.rag.questions import Question
from ovspec.rag.result import RagResult
from ovspec.rag.speculative_rag import SpeculativeRAG
from ovspec_models.folder.shown import shown

PLAIN, SPECULATIVE, CACHED = WAYS = ("plain", "speculative", "speculative, prefix cached")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One question, answered in one way.

    Attributes:
        correct: whether the answer contains one of the question's.
        latency: milliseconds from the question to the answer.
        target_tokens: that the target computed.
    """

    answer: str
    correct: bool
    latency: float
    target_tokens: int


@dataclass(frozen=True, slots=True)
class Example:
    """One question in every way.

    Attributes:
        retrieved: whether the documents contain one of its answers.
        drafted: whether one of the drafts does.
        outcomes: by the names of `WAYS`.
    """

    question: str
    retrieved: bool
    drafted: bool
    outcomes: dict[str, Outcome]


def evaluate(
    rag: SpeculativeRAG,
    questions: Sequence[Question],
    step: Callable[[str], None] = lambda text: None,
) -> list[Example]:
    """Answer every question in every way, one way after the other, in turns of their order.

    Both speculative ways verify the same drafts, whose time counts for both.

    Args:
        step: called with the question that begins.

    Raises:
        InvalidValueError: no document fits a question, or the target has no room for those that do. It is
            said before the first one is answered.
    """
    for question in questions:
        try:
            rag.check(question.text)
        except InvalidValueError as error:
            raise InvalidValueError(f"question {shown(question.text)}: {error}") from error
    examples = []
    for turn, question in enumerate(questions):
        step(question.text)
        examples.append(_answered(rag, question, turn))
    return examples


def _answered(rag: SpeculativeRAG, question: Question, turn: int) -> Example:
    outcomes: dict[str, Outcome] = {}
    if turn % 2:
        outcomes[PLAIN] = _outcome(question, rag.ask(question.text, "plain"))
    drafted = rag.drafted(question.text)
    for shared in (False, True) if turn // 2 % 2 else (True, False):
        outcomes[CACHED if shared else SPECULATIVE] = _outcome(question, rag.verified(drafted, shared))
    if not turn % 2:
        outcomes[PLAIN] = _outcome(question, rag.ask(question.text, "plain"))
    return Example(
        question.text,
        any(contains(found.text, question.answers) for found in drafted.documents),
        any(contains(draft.answer, question.answers) for draft in drafted.drafts),
        {way: outcomes[way] for way in WAYS},
    )


def _outcome(question: Question, result: RagResult) -> Outcome:
    correct = bool(contains(result.answer, question.answers))
    return Outcome(result.answer, correct, result.durations.total, result.target_tokens)
