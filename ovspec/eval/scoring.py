"""Log-likelihood of given tokens under a pipeline's setting."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ovspec.cache.cache import CachedSequence
from ovspec.eval.divergence import log_softmax
from ovspec.generation.drafting_settings import DEFAULT_NUM_ASSISTANT_TOKENS
from ovspec.modes.row_limits import MAX_VERIFY_ROWS
from ovspec.passes.prompt_pieces import DEFAULT_MAX_NUM_BATCHED_TOKENS
from ovspec.passes.tables import Rows
from ovspec.pipeline.pipeline import LLMPipeline
from ovspec_models.folder.sparse_verify import SparseVerify

# Of a sparse pass, as if drafts of the default length had all been right.
_SPARSE_ROWS = 1 + DEFAULT_NUM_ASSISTANT_TOKENS


@dataclass(frozen=True, slots=True)
class Continuations:
    """Scores of several continuations of one prompt.

    Attributes:
        logprobs: of each, f64 `[tokens]`, nats.
        num_read: tokens that the target computed for them.
    """

    logprobs: list[NDArray[np.float64]]
    num_read: int


@dataclass(frozen=True, slots=True)
class _Asked:
    """A continuation that is being scored.

    Attributes:
        sequence: its place in the cache.
        read: i64, what is read behind what the cache has: of the prompt, and all tokens but the last.
        tokens: i64, the continuation.
        logprobs: f64, of its tokens.
    """

    sequence: CachedSequence
    read: NDArray[np.int64]
    tokens: NDArray[np.int64]
    logprobs: NDArray[np.float64]

    @classmethod
    def of(cls, sequence: CachedSequence, prompt: SequenceOf[int], tokens: SequenceOf[int]) -> _Asked:
        read = np.array([*prompt, *tokens[:-1]], np.int64)
        return cls(sequence, read, np.array(tokens, np.int64), np.zeros(len(tokens)))

    @property
    def unscored(self) -> int:
        """Rows before the one that the first token follows."""
        return len(self.read) - len(self.tokens)

    def score(self, logits: NDArray[np.float32], row: int) -> None:
        """Take over rows of logits `[rows, vocab]`, from a row of `read` on."""
        if len(logits):
            first = row - self.unscored
            scored = slice(first, first + len(logits))
            highest = logits.max(axis=1, keepdims=True)
            sums = np.exp(logits - highest).sum(axis=1, dtype=np.float64)
            found = logits[np.arange(len(logits)), self.tokens[scored]] - highest[:, 0]
            self.logprobs[scored] = found - np.log(sums)


class Scorer:
    """Scores continuations of prompts as the pipeline's target would verify them.

    A prompt is read as the pipeline reads prompts. A continuation is read in passes of verification: dense
    ones, also with commits, whose output is the dense one, or sparse ones under `SparseVerify`.
    Nobody else may use the pipeline meanwhile.
    """

    def __init__(self, pipeline: LLMPipeline) -> None:
        self._runner = pipeline.runner
        verify = pipeline.verify
        self._sparse = verify if isinstance(verify, SparseVerify) else None

    def score(self, prompt: SequenceOf[int], tokens: SequenceOf[int]) -> tuple[float, bool]:
        """The sum of the log-probabilities of `tokens` after `prompt`, and whether all are the greedy choice.

        Raises:
            ValueError: an empty prompt.
        """
        if not prompt:
            raise ValueError("prompt: it has no tokens; a first token needs one to follow")
        total, greedy = 0.0, True
        for row, token in zip(self._rows(prompt, tokens), tokens, strict=True):
            total += float(log_softmax(row)[token])
            greedy &= int(row.argmax()) == token
        return total, greedy

    def score_all(
        self, prompt: SequenceOf[int], continuations: SequenceOf[SequenceOf[int]], shared: bool = True
    ) -> Continuations:
        """The log-probabilities of every token of several continuations, by dense passes over all of them.

        Args:
            prompt: what each of them follows, at least one token.
            continuations: at least one token each.
            shared: whether the prompt's blocks of the cache are read once and shared, also with later calls;
                else each continuation reads the whole prompt.
        """
        shared = shared and self._runner.attention.prefill is None  # else those blocks are of sparse prompts
        begun, sequences, num_read = CachedSequence(), [CachedSequence() for _ in continuations], 0
        try:
            if shared:
                num_read = self._publish(begun, prompt)
            asked = []
            for sequence, tokens in zip(sequences, continuations, strict=True):
                found = self._runner.share(sequence, prompt) if shared else 0
                asked.append(_Asked.of(sequence, prompt[found:], tokens))
            self._read(asked)
            num_read += sum(len(one.read) for one in asked)
            return Continuations([one.logprobs for one in asked], num_read)
        finally:
            for sequence in (begun, *sequences):
                self._runner.release(sequence)

    def _read(self, asked: SequenceOf[_Asked]) -> None:
        """Score in passes of few enough rows, each of as many continuations as it has room for."""
        parts, room = list[tuple[_Asked, int, int]](), DEFAULT_MAX_NUM_BATCHED_TOKENS
        for one in asked:
            begin = 0
            while begin < len(one.read):
                end = min(len(one.read), begin + room)
                parts.append((one, begin, end))
                room -= end - begin
                if not room:
                    self._pass(parts)
                    parts, room = [], DEFAULT_MAX_NUM_BATCHED_TOKENS
                begin = end
        if parts:
            self._pass(parts)

    def _pass(self, parts: SequenceOf[tuple[_Asked, int, int]]) -> None:
        sampled = [max(0, end - max(begin, one.unscored)) for one, begin, end in parts]
        batch = [
            Rows(one.sequence, one.read[begin:end], count)
            for (one, begin, end), count in zip(parts, sampled, strict=True)
        ]
        logits = self._runner.forward(batch).logits
        first = 0
        for (one, _, end), count in zip(parts, sampled, strict=True):
            one.score(logits[first : first + count], end - count)
            first += count

    def _publish(self, sequence: CachedSequence, prompt: SequenceOf[int]) -> int:
        """Read a prompt's full blocks that are new, and share them; how many tokens these are."""
        runner = self._runner
        whole = (len(prompt) - 1) // runner.block_size * runner.block_size
        found = runner.share(sequence, prompt)
        if whole > found:
            runner.prefill(sequence, np.array(prompt[found:whole], np.int64), DEFAULT_MAX_NUM_BATCHED_TOKENS)
            runner.publish(sequence, prompt[:whole])
        return max(0, whole - found)

    def _rows(self, prompt: SequenceOf[int], tokens: SequenceOf[int]) -> Iterator[NDArray[np.float32]]:
        """Logits f32 `[vocab]` that each of the tokens follows from; valid until the next is asked for."""
        if not tokens:
            return
        cached, runner = CachedSequence(), self._runner
        step = MAX_VERIFY_ROWS if self._sparse is None else _SPARSE_ROWS
        try:
            whole = np.array(prompt, np.int64)
            yield runner.prefill(cached, whole, DEFAULT_MAX_NUM_BATCHED_TOKENS, True).logits[0]
            for begin in range(0, len(tokens) - 1, step):
                read = np.array(tokens[begin : min(begin + step, len(tokens) - 1)], np.int64)
                limits = runner.limits(self._sparse, cached.length + len(read))
                yield from runner.forward([Rows(cached, read, len(read), **limits.rows)]).logits
        finally:
            runner.release(cached)
