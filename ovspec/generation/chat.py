"""A chat: its history, turn by turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from openvino_genai import ChatHistory


@dataclass(slots=True)
class Turn:
    """A message of the user and its answer.

    Attributes:
        history: ends with the message.
        answer: what the model said.
        cancelled: whether the streamer cancelled the answer; the history then forgets the turn.
    """

    history: ChatHistory
    answer: str = ""
    cancelled: bool = False


class Chat:
    """History of a chat.

    The prompt of a turn is the whole templated history. What it begins with is in the prefix cache since the
    last turn, and only the rest, usually the new message, is read.
    """

    def __init__(self) -> None:
        self.history: ChatHistory | None = None

    def start(self, system_message: str) -> None:
        """Start a new history."""
        messages = [{"role": "system", "content": system_message}] if system_message else []
        self.history = ChatHistory(messages)

    def is_turn(self, inputs: object) -> bool:
        """Whether a call with such inputs is a turn of this chat."""
        return isinstance(inputs, str) and self.history is not None

    @contextmanager
    def turn(self, message: str) -> Iterator[Turn]:
        """Answer `message` in the block; an error or a cancelled answer leaves the history as it was."""
        assert self.history is not None
        turn = Turn(self.history, cancelled=True)
        self.history.append({"role": "user", "content": message})
        try:
            yield turn
        finally:
            if turn.cancelled:
                self.history.pop()
        if not turn.cancelled:
            self.history.append({"role": "assistant", "content": turn.answer})
