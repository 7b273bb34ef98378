"""A chat whose keys and values stay in the cache between turns."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from openvino_genai import ChatHistory

from ovspec.runtime.cache import CachedSequence


class Chat:
    """History of a chat and the caches of the tokens that were computed for it.

    A turn's prompt is the whole templated history. Only what differs from the cached tokens, in
    general the new message, is prefilled; a template that rewrites older turns costs more, never
    correctness.
    """

    def __init__(self) -> None:
        self.history: ChatHistory | None = None
        self._tokens: list[int] = []
        self.target = CachedSequence()
        self.draft = CachedSequence()

    def start(self, system_message: str) -> None:
        """Begin a history."""
        messages = [{"role": "system", "content": system_message}] if system_message else []
        self.history = ChatHistory(messages)

    def resume(self, prompt: SequenceOf[int]) -> tuple[CachedSequence, CachedSequence]:
        """Roll the caches back to what they share with `prompt`; its last token stays to be computed."""
        common = 0
        for cached, token in zip(self._tokens, prompt[:-1], strict=False):
            if cached != token:
                break
            common += 1
        for cache in (self.target, self.draft):
            cache.rollback(min(cache.length, common))
        return self.target, self.draft

    def keep(self, tokens: SequenceOf[int]) -> None:
        """Remember which tokens the caches hold."""
        self._tokens = list(tokens)
