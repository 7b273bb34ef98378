"""A chat: its history, turn by turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from openvino_genai import ChatHistory

from ovspec.errors import InvalidValueError
from ovspec.generation.inputs import check_texts


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


@dataclass(slots=True)
class TokenTurn:
    """Tokens of a turn and their answer.

    Attributes:
        prompts: in a chat one, which begins with the turns before.
        answer: tokens of the model; `None`: the chat forgets the turn.
    """

    prompts: Sequence[Sequence[int]]
    answer: Sequence[int] | None = None


class Chat:
    """History of a chat, in messages or, where turns are given so, in tokens.

    The prompt of a turn is the whole templated history. What it begins with is in the prefix cache since the
    last turn, and only the rest, usually the new message, is read.
    """

    def __init__(self) -> None:
        self.history: ChatHistory | None = None
        self._tokens: list[int] = []

    def start(self, system_message: str) -> None:
        """Start a new history.

        Raises:
            InvalidValueError: the message is no text.
        """
        check_texts([system_message], "system_message")
        messages = [{"role": "system", "content": system_message}] if system_message else []
        self.history = ChatHistory(messages)

    def is_turn(self, inputs: object) -> bool:
        """Whether a call with such inputs is a turn of this chat."""
        return self.history is not None and not isinstance(inputs, ChatHistory)

    @contextmanager
    def turn(self, texts: Sequence[str]) -> Iterator[Turn]:
        """Answer a message in the block; an error or a cancelled answer leaves the history as it was."""
        assert self.history is not None
        if len(texts) != 1:
            raise InvalidValueError(f"inputs: a chat takes one message at a time, got {len(texts)}")
        check_texts(texts)
        if self._tokens:
            raise InvalidValueError("inputs: this chat goes on in tokens; give them, or start another")
        turn = Turn(self.history, cancelled=True)
        self.history.append({"role": "user", "content": texts[0]})
        try:
            yield turn
        finally:
            if turn.cancelled:
                self.history.pop()
        if not turn.cancelled:
            self.history.append({"role": "assistant", "content": turn.answer})

    @contextmanager
    def token_turn(self, rows: Sequence[Sequence[int]]) -> Iterator[TokenTurn]:
        """Answer tokens in the block, in a chat behind those of its turns; errors as of `turn`.

        What stands before an answer, such as a system message, is in the tokens.
        """
        if self.history is None:
            yield TokenTurn(rows)
            return
        if len(rows) != 1 or any(message["role"] == "user" for message in self.history.get_messages()):
            what = "takes one prompt at a time" if len(rows) != 1 else "has messages; give it text"
            raise InvalidValueError(f"inputs: this chat {what}, or call finish_chat before")
        turn = TokenTurn([[*self._tokens, *rows[0]]])
        yield turn
        if turn.answer is not None:
            self._tokens = [*turn.prompts[0], *turn.answer]
