"""The beams of one request: a search, with a sequence in the target's cache for every hypothesis of it.

Beams share the blocks of the tokens that they have in common: a new one is a fork of its parent, and whoever
writes to a shared block first copies it.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from openvino_genai import GenerationFinishReason

from ovspec.cache.block_manager import BlockManager
from ovspec.engine.requests.request import Request, RequestOutput, TokenLogprobs
from ovspec.engine.requests.token_logprobs import token_logprobs
from ovspec.errors import InvalidValueError
from ovspec.generation.detokenizer import IncrementalDetokenizer
from ovspec.generation.sequence import Sequence
from ovspec.sampling.beam_search import BeamParams, BeamSearch, Hypothesis, log_softmax


@dataclass(frozen=True, slots=True)
class _Noted:
    """The log probabilities of a hypothesis: of its last token, and those of its parent."""

    last: TokenLogprobs
    before: _Noted | None

    @property
    def all(self) -> list[TokenLogprobs]:
        """One for each token."""
        found, at = [self.last], self.before
        while at is not None:
            found.append(at.last)
            at = at.before
        return found[::-1]


class Beams:
    """Searches behind a prompt.

    Args:
        params: how.
        request: that the beams answer.
        prompt: the sequence of its prompt, which keeps its blocks.
        blocks: of the target's cache.

    Attributes:
        sequences: of the hypotheses that go on, in their order; between steps the cache holds all tokens but
            the last of each. None: the prompt is to be read first, or the search is over.
    """

    def __init__(self, params: BeamParams, request: Request, prompt: Sequence, blocks: BlockManager) -> None:
        self._params, self._request, self._prompt, self._blocks = params, request, prompt, blocks
        self.sequences: list[Sequence] = []
        self._texts = [request.detokenizer]
        self._noted = dict[Hypothesis, _Noted]()  # of hypotheses that go on, or have ended
        self._search = self._start()

    def _start(self) -> BeamSearch:
        stops = self._prompt.settings.stop_token_ids
        return BeamSearch.start(self._params, self._prompt.limit, len(stops))

    @property
    def num_beams(self) -> int:
        """Rows that a pass may have for them."""
        return self._params.num_beams

    def begin_again(self) -> None:
        """Give all blocks back: the search begins anew behind its prompt, with the same end."""
        self._release(self.sequences)
        self.sequences, self._texts = [], [self._request.detokenizer]
        self._noted.clear()
        self._search = self._start()

    def go_on(self) -> None:
        """After a pass that was cut short: go on from the tokens that are there."""
        for sequence in self.sequences:
            sequence.trim_caches()

    def advance(self, logits: SequenceOf[NDArray[np.float32]]) -> list[RequestOutput]:
        """Go on by one token.

        Args:
            logits: f32 `[vocab]`, of what follows each of `sequences`, or the prompt.

        Returns:
            The answers, if this ends the search.

        Raises:
            ValueError: logits that no token can be chosen by.
        """
        before, parents = self._search.live, self.sequences or [self._prompt]
        places = {hypothesis: place for place, hypothesis in enumerate(before)}
        rows = {
            hypothesis: parent.processor.process(log_softmax(row))
            for hypothesis, parent, row in zip(before, parents, logits, strict=True)
        }
        texts = dict(zip(before, self._texts, strict=True))
        search = self._search.step(rows, lambda parent, token: self._ends(texts[parent], token))
        self._note(search, before, logits)
        grown, shown = list[Sequence](), list[IncrementalDetokenizer | None]()
        for hypothesis in search.live:
            assert hypothesis.parent is not None
            place = places[hypothesis.parent]
            grown.append(self._grown(parents[place], hypothesis.token))
            shown.append(_with(self._texts[place], hypothesis.token))
        self._search, self.sequences, self._texts, old = search, grown, shown, self.sequences
        self._release(old)
        return [] if grown else self._answers()

    def _ends(self, text: IncrementalDetokenizer | None, token: int) -> bool:
        """Whether a token behind a text ends the answer."""
        if token in self._prompt.settings.stop_token_ids:
            return True
        grown = _with(text, token)
        return grown is not None and grown.stopped

    def _grown(self, parent: Sequence, token: int) -> Sequence:
        sequence = parent.fork(self._blocks.fork(parent.target))
        sequence.tokens.append(token)
        sequence.processor.extend([token])
        return sequence

    def _release(self, sequences: SequenceOf[Sequence]) -> None:
        for sequence in sequences:
            self._blocks.release(sequence.target)

    def _note(
        self, search: BeamSearch, before: SequenceOf[Hypothesis], logits: SequenceOf[NDArray[np.float32]]
    ) -> None:
        """Keep the log probabilities of what is in a search, and of nothing else, if the request asks."""
        top = self._request.logprobs
        if top is None:
            return
        rows, noted = dict(zip(before, logits, strict=True)), dict[Hypothesis, _Noted]()
        for one in (*search.live, *(ended.hypothesis for ended in search.ended)):
            if found := self._noted.get(one):
                noted[one] = found
            elif one.parent is not None:
                last = token_logprobs(rows[one.parent], one.token, top)
                noted[one] = _Noted(last, self._noted.get(one.parent))
        self._noted = noted

    def _answers(self) -> list[RequestOutput]:
        """The best that has ended, as many as were asked for."""
        found, count = list[RequestOutput](), self._prompt.settings.num_return_sequences
        for one in self._search.ended[:count]:
            path = one.hypothesis.path
            reason = GenerationFinishReason.STOP if one.stopped else GenerationFinishReason.LENGTH
            output = RequestOutput(
                self._request.request_id,
                [step.token for step in path],
                ["target"] * len(path),
                self._noted[one.hypothesis].all if self._noted else [],
                reason,
                score=one.score,
            )
            found.append(output)
        if len(found) < count:
            raise InvalidValueError(
                f"num_return_sequences={count}: {len(found)} answers were found, as too many tokens are "
                "excluded (by no_repeat_ngram_size, for instance); ask for fewer"
            )
        return found


def _with(text: IncrementalDetokenizer | None, token: int) -> IncrementalDetokenizer | None:
    """A text with one more token."""
    if text is None:
        return None
    grown = text.fork()
    grown.update([token])
    return grown
