"""One answer to a request while it grows: tokens in, pieces of text out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ovspec.engine.requests.request import RequestMetrics, RequestOutput, TokenLogprobs, Writer
from ovspec.generation.detokenizer import IncrementalDetokenizer
from ovspec.generation.results import FINISH_WORDS
from ovspec.generation.token_text import Piece, TokenText
from ovspec.serve.output.prompt_logprobs import NamedLogprobs, PromptText


@dataclass(slots=True)
class Delta:
    """What an output added to an answer.

    Attributes:
        text: what can be shown now.
        tokens: the new tokens that belong to the answer.
        pieces: the same text, token by token, with who wrote each; empty unless they were asked for.
        logprobs: of all tokens whose place in the text is known now; empty unless they were asked for.
        finish_reason: OpenAI's word for why the answer ended, or `None`.
        blocks_read: as of `RequestOutput`.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    pieces: list[tuple[str, Writer]] = field(default_factory=list)
    logprobs: list[NamedLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    blocks_read: list[float] | None = None

    @property
    def shows(self) -> bool:
        """Whether there is something to send; else it is part of a character, or of a stop string."""
        return bool(self.text or self.finish_reason or self.logprobs or self.pieces)

    def extend(self, other: Delta) -> None:
        """Add tokens, pieces and log probabilities of the next one; its other fields are not joined."""
        self.tokens += other.tokens
        self.pieces += other.pieces
        self.logprobs += other.logprobs


class Choice:
    """One answer.

    Args:
        token_by_token: whether every token's own text is wanted.
        logprobs: how many alternatives to name with each token; `None`: no log probabilities.
        min_tokens, prompt: as of `IncrementalDetokenizer`.
        echo: the prompt, which the answer's text begins with; `None`: it does not.

    Attributes:
        echoes: whether the prompt is still to be shown; `add` may take long then.
        num_tokens: tokens so far, those of a stop string included.
        finish_reason: as in `Delta`.
        metrics: of the last output.
        prompt_logprobs: of the prompt's tokens but the first, where they were asked for.
    """

    def __init__(
        self,
        token_text: TokenText,
        stop_strings: tuple[str, ...] = (),
        include_stop_string: bool = False,
        token_by_token: bool = False,
        *,
        logprobs: int | None = None,
        min_tokens: int = 0,
        prompt: Sequence[int] = (),
        echo: PromptText | None = None,
    ) -> None:
        self._echo, self.echoes = echo, echo is not None
        self.prompt_logprobs: list[TokenLogprobs] = []
        self._token_text = token_text
        self._detokenizer = IncrementalDetokenizer(
            token_text, stop_strings, include_stop_string, prompt=prompt, min_tokens=min_tokens
        )
        self._token_by_token, self._logprobs = token_by_token, logprobs
        self._named: list[tuple[int, Piece, TokenLogprobs, list[Piece]]] = []
        self._num_placed = 0
        self.num_tokens, self._sum_logprobs = 0, 0.0
        self.finish_reason: str | None = None
        self.metrics = RequestMetrics()

    @property
    def text(self) -> str:
        """The answer so far."""
        return (self._echo.text if self._echo is not None else "") + self._detokenizer.text

    @property
    def token_ends(self) -> list[int]:
        """Where in the text each token ends, as far as that is settled."""
        return self._detokenizer.ends

    @property
    def detokenizer(self) -> IncrementalDetokenizer:
        """A copy of what finds its stop strings."""
        return self._detokenizer.fork()

    @property
    def mean_logprob(self) -> float:
        """Of its tokens, where the request asked for log probabilities."""
        return self._sum_logprobs / max(1, self.num_tokens)

    def add(self, output: RequestOutput) -> Delta:
        """Take the tokens of an output.

        An answer that a stop string ended has a `finish_reason` while its request still runs; whoever reads
        it aborts the request.
        """
        delta = Delta(blocks_read=output.blocks_read)
        self.metrics = output.metrics
        self.prompt_logprobs += output.prompt_logprobs
        if self.finish_reason is not None:
            return delta
        before = self._detokenizer.num_seen
        if self._token_by_token or self._logprobs is not None:
            self._add_each(output, delta)
        else:
            delta.text = self._detokenizer.update(output.token_ids)
        taken = self._detokenizer.num_seen - before
        delta.tokens = output.token_ids[:taken]
        self.num_tokens += taken
        self._sum_logprobs += sum(one.logprob for one in output.logprobs[:taken])
        if self._detokenizer.stopped:
            self.finish_reason = "stop"
        elif output.finished:
            self._finish(delta, FINISH_WORDS[output.finish_reason] or "stop")
        delta.logprobs = self._placed()
        if self._echo is not None and self.echoes and (output.token_ids or output.finished):
            self.echoes = False
            delta.text = self._echo.text + delta.text
            if self._logprobs is not None:
                delta.logprobs = self._echo.named(self.prompt_logprobs, self._logprobs) + delta.logprobs
        delta.finish_reason = self.finish_reason
        return delta

    def _add_each(self, output: RequestOutput, delta: Delta) -> None:
        for index, (token, writer) in enumerate(zip(output.token_ids, output.writers, strict=True)):
            if self._logprobs is not None:
                self._name(token, output.logprobs[index], self._logprobs)
            piece = self._detokenizer.update([token])
            delta.text += piece
            if self._token_by_token:
                delta.pieces.append((piece, writer))
            if self._detokenizer.stopped:
                break

    def _name(self, token: int, logprobs: TokenLogprobs, count: int) -> None:
        asked = [token, *(other for other, _ in logprobs.top[:count])]
        first, *others = self._token_text.pieces(self._detokenizer.window, asked)
        self._named.append((token, first, logprobs, others))

    def _placed(self) -> list[NamedLogprobs]:
        """Of the tokens named so far, those whose place in the text is known now."""
        ends, found = self._detokenizer.ends, []
        for token, piece, logprobs, others in self._named[: len(ends) + 1 - self._num_placed]:
            offset = ends[self._num_placed - 1] if self._num_placed else 0
            offset += len(self._echo.text) if self._echo is not None else 0
            top = [(one, name, value) for (one, value), name in zip(logprobs.top, others, strict=False)]
            found.append(NamedLogprobs(token, piece, offset, logprobs.logprob, top))
            self._num_placed += 1
        del self._named[: len(found)]
        return found

    def _finish(self, delta: Delta, reason: str) -> None:
        """Show what was held back."""
        rest = self._detokenizer.finish()
        delta.text += rest
        if rest and self._token_by_token:
            delta.pieces.append((rest, delta.pieces[-1][1] if delta.pieces else "target"))
        self.finish_reason = "stop" if self._detokenizer.stopped else reason
