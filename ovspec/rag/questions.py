"""Questions with their answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ovspec.errors import InvalidValueError
from ovspec.eval.scores import normalised
from ovspec_models.folder.jsonl import check_text, json_lines


@dataclass(frozen=True, slots=True)
class Question:
    """A question of a file.

    Attributes:
        answers: texts of which an answer must contain one.
    """

    text: str
    answers: tuple[str, ...]


def read_questions(path: Path) -> list[Question]:
    """Questions of a JSONL file, `{"question": "...", "answers": ["...", ...]}` in every line.

    Raises:
        ValueError: the file can't be read, or a line is no question; it names the line.
    """
    questions = []
    for number, value in json_lines(str(path), path.read_bytes):
        if (found := _question(value)) is None:
            raise InvalidValueError(
                f'{path}: line {number} is no question with answers; expected {{"question": "...", '
                '"answers": ["..."]}'
            )
        for text in (found.text, *found.answers):
            check_text(f"{path}: line {number}", text)
        questions.append(found)
    if not questions:
        raise InvalidValueError(f'{path} holds no question; write {{"question": "...", "answers": ["..."]}}')
    return questions


def _question(value: Any) -> Question | None:
    if not isinstance(value, dict):
        return None
    text, answers = value.get("question"), value.get("answers")
    if not isinstance(text, str) or not text.strip() or not isinstance(answers, list):
        return None
    if not answers or not all(isinstance(answer, str) and normalised(answer) for answer in answers):
        return None
    return Question(text, tuple(answers))
