"""A chat whose keys and values stay in the cache between turns."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from dataclasses import dataclass

from openvino_genai import ChatHistory

from ovspec.runtime.cache import CachedSequence


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
    """History of a chat, with the cached sequences of target and draft model.

    The prompt of a turn is the whole templated history. The cached prefix is kept and only the rest, usually
    the new message, is prefilled. A template that rewrites older turns costs time, but the result is the
    same.
    """

    def __init__(self) -> None:
        self.history: ChatHistory | None = None
        self._tokens: list[int] = []
        self.target = CachedSequence()
        self.draft = CachedSequence()

    def start(self, system_message: str) -> None:
        """Start a new history."""
        messages = [{"role": "system", "content": system_message}] if system_message else []
        self.history = ChatHistory(messages)

    def is_turn(self, inputs: object) -> bool:
        """Whether a call with such inputs is a turn of a chat, of this one or of the caller's own."""
        return isinstance(inputs, ChatHistory) or (isinstance(inputs, str) and self.history is not None)

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

    def resume(self, prompt: SequenceOf[int]) -> tuple[CachedSequence, CachedSequence]:
        """Roll the caches back to the prefix they share with `prompt`, without its last token."""
        common = 0
        for cached, token in zip(self._tokens, prompt[:-1], strict=False):
            if cached != token:
                break
            common += 1
        for cache in (self.target, self.draft):
            cache.rollback(min(cache.length, common))
        return self.target, self.draft

    def keep(self, tokens: SequenceOf[int]) -> None:
        """Record which tokens the caches hold."""
        self._tokens = list(tokens)
