"""One `generate` call: run the engine, stream, find stop strings, measure."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager

import openvino_genai
from openvino_genai import GenerationFinishReason, StreamingStatus

from ovspec.engine.engine import Engine, stop
from ovspec.errors import InvalidValueError
from ovspec.generation.detokenizer import IncrementalDetokenizer
from ovspec.generation.generation_config import GenerationSettings
from ovspec.generation.metrics import PerfMetrics
from ovspec.generation.sequence import Sequence
from ovspec.generation.streamer import OutputStream, Streamer
from ovspec.runtime.clock import microseconds
from ovspec.schedule.schedule import Schedule


class GenerationCall:
    """State of one call.

    Args:
        engine: generates.
        tokenizer: of the target.
        load_time: of the pipeline, milliseconds, for the metrics.
        streamer: the user's streamer, or none.
        why_lossy: for the metrics; and the same for the case that verification left nothing out.
        identity_breakers: for the metrics.

    Attributes:
        metrics: of this call alone.
        cancelled: whether the streamer answered CANCEL.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: openvino_genai.Tokenizer,
        load_time: float,
        streamer: Streamer | None,
        why_lossy: tuple[str, str] = ("", ""),
        identity_breakers: tuple[str, ...] = (),
    ) -> None:
        self._started = microseconds()
        self._engine = engine
        self._tokenizer = tokenizer
        self._stream = OutputStream(streamer)
        self._streams = streamer is not None
        self._detokenizers: list[IncrementalDetokenizer] = []
        self._why_lossy = why_lossy
        self.metrics = PerfMetrics(
            load_time=load_time, why_lossy=why_lossy[0], identity_breakers=identity_breakers
        )
        self.cancelled = False

    @property
    def parsed(self) -> list[dict[str, object]]:
        """What the parsers of the streamer made of the text; nothing without parsers."""
        return self._stream.parsed

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Append the duration of a `with` block to a series of the raw metrics."""
        started = microseconds()
        yield
        getattr(self.metrics.raw_metrics, name).append(microseconds() - started)

    def run(self, sequences: SequenceOf[Sequence], settings: GenerationSettings, schedule: Schedule) -> None:
        """Generate. Afterwards, also after an exception, the caches match the tokens of the sequences.

        Raises:
            ValueError: a streamer with several sequences.
        """
        if self._streams and len(sequences) > 1:
            raise InvalidValueError(
                f"streamer: {len(sequences)} sequences can't share one; generate one at a time"
            )
        if self._stream.takes_text or settings.stop_strings:
            self._detokenizers = [
                IncrementalDetokenizer(
                    self._tokenizer, settings.stop_strings, settings.include_stop_str_in_output
                )
                for _ in sequences
            ]
        watched = {id(sequence): d for sequence, d in zip(sequences, self._detokenizers, strict=False)}

        def on_tokens(sequence: Sequence, tokens: list[int]) -> bool:
            return self._deliver(sequence, tokens, watched.get(id(sequence)))

        try:
            self._engine.run(sequences, on_tokens, self.metrics.raw_metrics, self._started, schedule)
            for detokenizer in self._detokenizers:
                self._stream.write([], detokenizer.finish())
        finally:
            stop(sequences, GenerationFinishReason.STOP)
            for sequence in sequences:
                sequence.take_back()
                sequence.trim_caches()
            # Another thread may wait on the streamer, so it is closed even after an exception.
            self._stream.end()

    def _deliver(
        self, sequence: Sequence, tokens: list[int], detokenizer: IncrementalDetokenizer | None
    ) -> bool:
        text = ""
        if detokenizer is not None:
            text = detokenizer.update(tokens)
            if detokenizer.stopped:
                surplus = len(sequence.generated) - detokenizer.num_tokens
                tokens = tokens[: max(0, len(tokens) - surplus)]
                sequence.truncate(len(sequence.tokens) - surplus)
        status = self._stream.write(tokens, text)
        self.cancelled = status == StreamingStatus.CANCEL
        return bool(status == StreamingStatus.RUNNING)

    def texts(self, sequences: SequenceOf[Sequence], settings: GenerationSettings) -> list[str]:
        """The outputs as text."""
        with self.timed("detokenization_durations"):
            if settings.stop_strings:
                return [detokenizer.text for detokenizer in self._detokenizers]
            return [self._tokenizer.decode(sequence.generated) for sequence in sequences]

    def finish(
        self, sequences: SequenceOf[Sequence]
    ) -> tuple[list[float], list[GenerationFinishReason], PerfMetrics]:
        """Complete the metrics; return scores, finish reasons and metrics for the results."""
        # A prompt with several answers is counted once, as in openvino_genai.
        answers = sequences[0].settings.num_return_sequences
        self.metrics.num_input_tokens = sum(sequence.prompt_length for sequence in sequences) // answers
        self.metrics.num_generated_tokens = sum(len(sequence.generated) for sequence in sequences)
        if self.metrics.raw_metrics.left_nothing_out:
            self.metrics.why_lossy = self._why_lossy[1]
        self.metrics.raw_metrics.generate_durations.append(microseconds() - self._started)
        return [0.0] * len(sequences), [sequence.finish_reason for sequence in sequences], self.metrics
