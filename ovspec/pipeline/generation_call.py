"""One `generate` call: run the engine, stream, find stop strings, measure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import openvino_genai
from openvino_genai import GenerationFinishReason, StreamingStatus

from ovspec.devices.clock import microseconds
from ovspec.engine.engine_thread import EngineThread
from ovspec.engine.requests.request import Request, RequestOutput
from ovspec.errors import InvalidValueError
from ovspec.generation.detokenizer import IncrementalDetokenizer
from ovspec.generation.generation_config import GenerationSettings
from ovspec.generation.metrics import PerfMetrics
from ovspec.generation.results import DecodedResults, EncodedResults
from ovspec.generation.streamer import OutputStream, Streamer
from ovspec.generation.token_text import GraphText

# Why an answer ended with which its streamer did not go on.
_ENDED_BY = {
    StreamingStatus.STOP: GenerationFinishReason.STOP,
    StreamingStatus.CANCEL: GenerationFinishReason.NONE,
    StreamingStatus.TOOL_CALL_STOP: GenerationFinishReason.TOOL_CALL,
}

PromptProgress: TypeAlias = "Callable[[int, int], object]"
"""Called with tokens of a call's prompts: those that have been read, and all of them."""


@dataclass(slots=True)
class Answer:
    """What was generated for one request.

    Attributes:
        prompt: tokens of its prompt.
        tokens: its output, a stop token included.
        logprobs: of each of them, where scores are wanted.
        beam_score: of a beam search.
        finish_reason: NONE while it goes on, and where the streamer cancelled it.
        ended: whether it was ended here, perhaps before the engine knows.
        detokenizer: where text is streamed or watched for stop strings.
    """

    prompt: SequenceOf[int]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    beam_score: float | None = None
    finish_reason: GenerationFinishReason = GenerationFinishReason.NONE
    ended: bool = False
    detokenizer: IncrementalDetokenizer | None = None

    @property
    def score(self) -> float:
        """That of a beam, else the sum of the log probabilities."""
        if self.beam_score is not None:
            return self.beam_score
        return sum(self.logprobs[: len(self.tokens)], 0.0)

    def output(self, echo: bool) -> list[int]:
        """Its tokens, behind those of its prompt with `echo`."""
        return [*self.prompt, *self.tokens] if echo else self.tokens


class GenerationCall:
    """State of one call.

    Args:
        load_time: of the pipeline, milliseconds, for the metrics.
        prompt_progress: called before the first pass, and after every pass that read some of the prompts.
        why_lossy: reasons for the metrics; called with whether verification, and whether prompts, read all.

    Attributes:
        answers: what was generated, in the order of the requests.
        cancelled: whether the streamer answered CANCEL.
    """

    def __init__(
        self,
        engine: EngineThread,
        tokenizer: openvino_genai.Tokenizer,
        load_time: float,
        streamer: Streamer | None,
        why_lossy: Callable[[bool, bool], str] = lambda verified, read: "",
        identity_breakers: tuple[str, ...] = (),
        prompt_progress: PromptProgress | None = None,
    ) -> None:
        self._started = microseconds()
        self._engine = engine
        self._tokenizer = tokenizer
        self._stream = OutputStream(streamer)
        self._streams = streamer is not None
        self._prompt_progress = prompt_progress
        self.answers: list[Answer] = []
        self._prompt_tokens = 0
        self._why_lossy = why_lossy
        self.metrics = PerfMetrics(
            load_time=load_time, why_lossy=why_lossy(False, False), identity_breakers=identity_breakers
        )
        self.cancelled = False

    def count_grammar(self, started: float, init_times: Mapping[str, float]) -> None:
        """The grammar is ready, on which work began at `started`; `init_times` are of `Grammars`."""
        self.metrics.raw_metrics.grammar_compile_times.append(microseconds() - started)
        self.metrics.grammar_compiler_init_times = dict(init_times)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Append the duration of a `with` block to a series of the raw metrics."""
        started = microseconds()
        yield
        getattr(self.metrics.raw_metrics, name).append(microseconds() - started)

    def run(self, requests: SequenceOf[Request], settings: GenerationSettings) -> list[Answer]:
        """Generate. Afterwards, also after an exception, nothing of the requests is left in the engine.

        Raises:
            ValueError: a streamer with several sequences, or with beams.
        """
        beams = settings.beams
        if self._streams and beams is not None:
            raise InvalidValueError(
                f"streamer: the best of num_beams={beams.num_beams} comes at the end; leave it out"
            )
        if self._streams and len(requests) > 1:
            raise InvalidValueError(
                f"streamer: {len(requests)} sequences can't share one; generate one at a time"
            )
        width = settings.num_return_sequences // settings.num_requests
        self.answers = [Answer(request.prompt_token_ids) for request in requests for _ in range(width)]
        self._prompt_tokens = sum(len(request.prompt_token_ids) for request in requests)
        if self._stream.takes_text or settings.stop_strings:
            empty = IncrementalDetokenizer(
                GraphText(self._tokenizer),
                settings.stop_strings,
                settings.include_stop_str_in_output,
                to_token_end=True,
            )
            for answer in self.answers:
                answer.detokenizer = empty.fork()
            for request in requests if beams is not None else ():
                request.detokenizer = empty
        for request in requests:
            request.metrics, request.arrival_time = self.metrics.raw_metrics, self._started / 1e6
            request.reports_reading = self._prompt_progress is not None
            request.logprobs = 0 if settings.scores else None
        places = range(0, len(self.answers), width)
        by_id = {r.request_id: self.answers[at : at + width] for r, at in zip(requests, places, strict=True)}
        handle = self._engine.run(requests)
        read = dict.fromkeys(by_id, 0)
        try:
            self._report(read)
            if settings.echo and self._streams:
                first = self.answers[0]
                tokens = list(first.prompt)
                if (reason := self._write(tokens, self._tokenizer.decode(tokens))) is not None:
                    first.finish_reason, first.ended = reason, True
                    handle.abort()
            for output in handle:
                answers = by_id[output.request_id]
                if read[output.request_id] < len(answers[0].prompt):
                    read[output.request_id] = output.metrics.num_read_tokens
                    self._report(read)
                for answer, own in zip(answers, output.answers, strict=False):
                    if not self._take(answer, own):
                        handle.abort(output.request_id)
                    answer.beam_score = own.score if output.beams else None
            for answer in self.answers:
                if (detokenizer := answer.detokenizer) is not None:
                    self._stream.write([], detokenizer.finish())
                    if detokenizer.stopped:  # perhaps only now, by text that a later token might have changed
                        answer.finish_reason = GenerationFinishReason.STOP
                        del answer.tokens[detokenizer.num_tokens :]
        finally:
            handle.abort()
            # Another thread may wait on the streamer, so it is closed even after an exception.
            self._stream.end()
        return self.answers

    def _take(self, answer: Answer, output: RequestOutput) -> bool:
        """Add what came to an answer; whether it goes on, or its request has ended."""
        if answer.ended:
            return True
        answer.logprobs += [one.logprob for one in output.logprobs]
        answer.finish_reason = output.finish_reason
        for tokens in of_passes(output) if self._streams else [output.token_ids]:
            answer.tokens += tokens
            if (reason := self._deliver(answer, tokens)) is not None:
                answer.finish_reason, answer.ended = reason, True
                return False
        return True

    def _report(self, read: Mapping[str, int]) -> None:
        """Say how much of the prompts has been read, by request."""
        if self._prompt_progress is not None:
            self._prompt_progress(sum(read.values()), self._prompt_tokens)

    def _deliver(self, answer: Answer, tokens: list[int]) -> GenerationFinishReason | None:
        """Give new tokens to the streamer; why the answer ends here, `None` if it goes on."""
        text, detokenizer = "", answer.detokenizer
        if detokenizer is not None:
            text = detokenizer.update(tokens)
            if detokenizer.stopped:
                surplus = len(answer.tokens) - detokenizer.num_tokens
                tokens = tokens[: max(0, len(tokens) - surplus)]
                del answer.tokens[detokenizer.num_tokens :]
        reason = self._write(tokens, text)
        if reason is None and detokenizer is not None and detokenizer.stopped:
            return GenerationFinishReason.STOP
        return reason

    def _write(self, tokens: list[int], text: str) -> GenerationFinishReason | None:
        """Show something to the streamer; why the answer ends by that, `None` if it goes on."""
        status = self._stream.write(tokens, text)
        self.cancelled = status == StreamingStatus.CANCEL
        return _ENDED_BY.get(status)

    def encoded(self, settings: GenerationSettings) -> EncodedResults:
        """The outputs as tokens; ends the call."""
        return EncodedResults(
            [answer.output(settings.echo) for answer in self.answers], *self._ended(settings)
        )

    def decoded(self, settings: GenerationSettings) -> DecodedResults:
        """The outputs as text; ends the call."""
        with self.timed("detokenization_durations"):
            texts = [self._text(answer, settings) for answer in self.answers]
        return DecodedResults(texts, *self._ended(settings), self._parsed(texts, settings))

    def _parsed(self, texts: SequenceOf[str], settings: GenerationSettings) -> list[dict[str, object]]:
        """What the parsers made of each text, those of the streamer first; nothing without parsers."""
        messages = self._stream.parsed
        if settings.parsers and not messages:
            messages = [{"content": text} for text in texts]
        for message in messages:
            for parser in settings.parsers:
                parser.parse(message)
        return messages

    def _text(self, answer: Answer, settings: GenerationSettings) -> str:
        detokenizer = answer.detokenizer
        if detokenizer is None or not settings.stop_strings:
            return str(self._tokenizer.decode(answer.output(settings.echo)))
        return (self._tokenizer.decode(list(answer.prompt)) if settings.echo else "") + detokenizer.text

    def _ended(
        self, settings: GenerationSettings
    ) -> tuple[list[float], list[GenerationFinishReason], PerfMetrics]:
        """Complete the metrics; return scores, finish reasons and metrics for the results."""
        answers = self.answers
        # A prompt with several answers is counted once, as in openvino_genai.
        self.metrics.num_input_tokens = self._prompt_tokens // settings.num_requests
        self.metrics.num_generated_tokens = sum(len(answer.tokens) for answer in answers)
        raw = self.metrics.raw_metrics
        self.metrics.why_lossy = self._why_lossy(raw.left_nothing_out, raw.read_whole_prompts)
        raw.generate_durations.append(microseconds() - self._started)
        return (
            [answer.score for answer in answers],
            [answer.finish_reason for answer in answers],
            self.metrics,
        )


def of_passes(output: RequestOutput) -> list[list[int]]:
    """The tokens of an output, pass by pass: each ends with one that the target itself wrote."""
    passes: list[list[int]] = [[]]
    for token, writer in zip(output.token_ids, output.writers, strict=True):
        passes[-1].append(token)
        if writer != "draft":
            passes.append([])
    return passes if passes[-1] else passes[:-1]
