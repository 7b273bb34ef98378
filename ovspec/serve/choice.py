"""One answer to a request while it grows: tokens in, pieces of text out."""

from __future__ import annotations

from dataclasses import dataclass, field

from ovspec.engine.request import RequestMetrics, RequestOutput, TokenLogprobs, Writer
from ovspec.generation.detokenizer import IncrementalDetokenizer
from ovspec.generation.results import FINISH_WORDS
from ovspec.generation.token_text import TokenText


@dataclass(slots=True)
class Delta:
    """What an output added to an answer.

    Attributes:
        text: what can be shown now.
        tokens: the new tokens that belong to the answer.
        pieces: the same text, token by token, with who wrote each; empty unless they were asked for.
        logprobs: of `tokens`; empty unless they were asked for.
        finish_reason: OpenAI's word for why the answer ended, or `None`.
        blocks_read: as of `RequestOutput`.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    pieces: list[tuple[str, Writer]] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    blocks_read: list[float] | None = None

    def extend(self, other: Delta) -> None:
        """Add tokens, pieces and log probabilities of the next one; its other fields are not joined."""
        self.tokens += other.tokens
        self.pieces += other.pieces
        self.logprobs += other.logprobs


class Choice:
    """One answer.

    Args:
        token_by_token: whether every token's own text is wanted.

    Attributes:
        num_tokens: tokens so far, those of a stop string included.
        finish_reason: as in `Delta`.
        metrics: of the last output.
    """

    def __init__(
        self,
        token_text: TokenText,
        stop_strings: tuple[str, ...] = (),
        include_stop_string: bool = False,
        token_by_token: bool = False,
    ) -> None:
        self._detokenizer = IncrementalDetokenizer(token_text, stop_strings, include_stop_string)
        self._token_by_token = token_by_token
        self.num_tokens = 0
        self.finish_reason: str | None = None
        self.metrics = RequestMetrics()

    @property
    def text(self) -> str:
        """The answer so far."""
        return self._detokenizer.text

    def add(self, output: RequestOutput) -> Delta:
        """Take the tokens of an output.

        An answer that a stop string ended has a `finish_reason` while its request still runs; whoever reads
        it aborts the request.
        """
        delta = Delta(blocks_read=output.blocks_read)
        self.metrics = output.metrics
        if self.finish_reason is not None:
            return delta
        if self._token_by_token:
            for token, writer in zip(output.token_ids, output.writers, strict=True):
                piece = self._detokenizer.update([token])
                delta.pieces.append((piece, writer))
                delta.text += piece
                if self._detokenizer.stopped:
                    break
            taken = len(delta.pieces)
        else:
            before = self._detokenizer.num_seen
            delta.text = self._detokenizer.update(output.token_ids)
            taken = self._detokenizer.num_seen - before
        delta.tokens, delta.logprobs = output.token_ids[:taken], output.logprobs[:taken]
        self.num_tokens += taken
        if self._detokenizer.stopped:
            self.finish_reason = "stop"
        elif output.finished:
            self._finish(delta, FINISH_WORDS[output.finish_reason] or "stop")
        delta.finish_reason = self.finish_reason
        return delta

    def _finish(self, delta: Delta, reason: str) -> None:
        """Show what was held back."""
        rest = self._detokenizer.finish()
        delta.text += rest
        if rest and self._token_by_token:
            delta.pieces.append((rest, delta.pieces[-1][1] if delta.pieces else "target"))
        self.finish_reason = "stop" if self._detokenizer.stopped else reason
