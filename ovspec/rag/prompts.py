"""What the models are asked, as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from openvino_genai import ChatHistory

from ovspec.errors import InvalidValueError
from ovspec.generation.inputs import encode, tokenized
from ovspec.pipeline.pipeline import LLMPipeline

# What begins prompts is the same for all questions, so that the prefix cache has it.
DRAFT = (
    "Answer the question from the documents. First give a rationale: the sentence of the documents that "
    "answers the question. Then give the answer in a few words."
)
PLAIN = "Answer the question from the documents in a few words."
VERIFY = "Answer the question in a few words. Then give the rationale of the answer."
#: The paper's self-reflection statement R.
REFLECTION = "Do you think the explanation supports the answers? (Yes or No)"
RATIONALE, ANSWER, YES = "Rationale:", "Answer:", "Yes"
# Marks where the draft stands in a chat; no text has it.
_BORDER = "\ue0d7\ue0d8"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A draft behind the question, as the target reads it.

    Attributes:
        question: token ids that all drafts share.
        draft: answer and rationale.
        reflection: the statement that asks whether the rationale supports the answer.
        yes: the answer to it that counts.
    """

    question: list[int]
    draft: list[int]
    reflection: list[int]
    yes: list[int]


class Prompts:
    """Makes the prompts for a pipeline, through its chat template where it has one."""

    def __init__(self, pipeline: LLMPipeline) -> None:
        self._chats, self._tokenizer = pipeline.chat_prompts, pipeline.get_tokenizer()
        self._has_template = bool(self._tokenizer.chat_template)

    def draft(self, question: str, documents: Sequence[str]) -> list[int]:
        """Where the drafter writes the rationale, and `answer` behind it the answer."""
        return self._turn(_with_documents(DRAFT, question, documents), RATIONALE)

    def answer(self, prompt: Sequence[int], rationale: Sequence[int]) -> list[int]:
        """Where the drafter writes the answer: behind the prompt of `draft` and the rationale's tokens."""
        return [*prompt, *rationale, *self._plain(f"\n{ANSWER}")]

    def plain(self, question: str, documents: Sequence[str]) -> list[int]:
        """Where the target answers from all documents."""
        return self._turn(_with_documents(PLAIN, question, documents), ANSWER)

    def candidate(self, question: str, answer: str, rationale: str) -> Candidate:
        """A draft as the target reads it.

        Raises:
            InvalidValueError: the chat template leaves messages out.
        """
        asked = f"{VERIFY}\nQuestion: {_clean(question)}"
        drafted = f" {_clean(answer)}\n{RATIONALE} {_clean(rationale)}"
        if not self._has_template:
            first = encode(self._tokenizer, f"{asked}\n{ANSWER}")
            drafted_ids, reflection = self._plain(drafted), self._plain(f"\n{REFLECTION}\n")
            return Candidate(first, drafted_ids, reflection, self._plain(YES))
        history = ChatHistory(
            [
                {"role": "user", "content": asked},
                {"role": "assistant", "content": f"{ANSWER}{_BORDER}{drafted}{_BORDER}"},
                {"role": "user", "content": REFLECTION},
            ]
        )
        parts = self._chats.templated(history).split(_BORDER)
        if len(parts) != 3:
            raise InvalidValueError(
                "the target's chat template leaves messages of the assistant out, so that drafts can't be "
                "verified; take another target"
            )
        first, drafted_ids, reflection = map(self._chats.tokenized, parts)
        return Candidate(first, drafted_ids, reflection, self._plain(YES))

    def _turn(self, text: str, begin: str) -> list[int]:
        if not self._has_template:
            return encode(self._tokenizer, f"{text}\n{begin}")
        return [*self._chats.tokenized(self._chats.as_turn(text)), *self._plain(begin)]

    def _plain(self, text: str) -> list[int]:
        return tokenized(self._tokenizer, text, special_tokens=False)


def _with_documents(task: str, question: str, documents: Sequence[str]) -> str:
    numbered = (f"Document {number}:\n{text}" for number, text in enumerate(documents, 1))
    return "\n\n".join([task, *numbered, f"Question: {question}"])


def _clean(text: str) -> str:
    return text.replace(_BORDER, "")
