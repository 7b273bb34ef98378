"""Log-likelihood of given tokens under a pipeline's setting."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

from ovspec.eval.divergence import log_softmax
from ovspec.generation.generation_config import DEFAULT_NUM_ASSISTANT_TOKENS
from ovspec.pipeline.pipeline import LLMPipeline
from ovspec.runtime.cache import CachedSequence
from ovspec.runtime.prompt_pieces import DEFAULT_MAX_NUM_BATCHED_TOKENS
from ovspec.runtime.tables import Rows
from ovspec.verify.limits import MAX_VERIFY_ROWS, Limits
from ovspec_models.sparse_verify import SparseVerify

# Of a sparse pass, as if drafts of the default length had all been right.
_SPARSE_ROWS = 1 + DEFAULT_NUM_ASSISTANT_TOKENS


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
                limits = Limits.of(self._sparse, cached.length + len(read), runner.block_size, 1.0)
                yield from runner.forward([Rows(cached, read, len(read), **limits.rows)]).logits
        finally:
            runner.release(cached)
