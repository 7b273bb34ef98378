"""Teacher forcing: the dense reference's tokens, run through the target as a verifier would see them."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

from ovspec.cache.cache import CachedSequence
from ovspec.engine.requests.meter import Meter
from ovspec.engine.verify.verifier import Draft, Verifier
from ovspec.eval.divergence import Decision, decide
from ovspec.generation.generation_config import GenerationSettings
from ovspec.generation.raw_metrics import RawPerfMetrics
from ovspec.generation.sequence import Sequence
from ovspec.passes.prompt_pieces import DEFAULT_MAX_NUM_BATCHED_TOKENS
from ovspec.runner.model_runner import ModelRunner
from ovspec_models.folder.sparse_verify import SparseVerify


class TeacherForcing:
    """A prompt in the target's cache, and the tokens that follow it whatever the model would have chosen.

    Every pass takes the last token and `num_assistant_tokens` more, as if every draft had been right. The
    prompt is read as in the engine, densely for the reference; the rows of a sparse pass leave the keys and
    values that a sparse pass makes, and later passes of the same run read those.

    Args:
        settings: of the generation, with the draft tokens of a pass. Its penalties and suppressed tokens are
            part of every decision.
        tokens: the reference's output, at least one token.

    Attributes:
        metrics: what the passes of the last run read.
    """

    def __init__(
        self,
        runner: ModelRunner,
        settings: GenerationSettings,
        prompt: SequenceOf[int],
        tokens: SequenceOf[int],
    ) -> None:
        self._runner = runner
        self._settings = settings
        self._prompt = list(prompt)
        self._tokens = list(tokens)
        self._cached = CachedSequence()
        text = np.array(self._prompt, np.int64)
        read = runner.prefill(self._cached, text, DEFAULT_MAX_NUM_BATCHED_TOKENS)
        self._cached.keep_state(len(text))
        self.metrics = RawPerfMetrics()
        #: Logits f32 `[vocab]` of the first token after a dense prompt.
        self.first = self._start().processor.process(read.logits[0]).copy()
        # Copies, because a row is valid only until the next pass.
        self._dense = [row.copy() for row in self.run(None)]
        if runner.attention.prefill is not None:
            runner.release(self._cached)
            runner.prefill(self._cached, text, DEFAULT_MAX_NUM_BATCHED_TOKENS, is_prompt=True)

    def decisions(self, sparse: SparseVerify | None) -> list[Decision]:
        """Compare a setting with dense passes at every token after the first; `None` is dense."""
        rows = zip(self._dense, self.run(sparse), self._tokens[1:], strict=True)
        return [decide(dense, row, token) for dense, row, token in rows]

    def run(self, sparse: SparseVerify | None) -> Iterator[NDArray[np.float32]]:
        """Logits f32 `[vocab]` of every token after the first, each valid until the next is asked for."""
        verifier, self.metrics = Verifier(self._runner), RawPerfMetrics()
        meter = Meter(self.metrics)
        self._cached.rollback(len(self._prompt))
        sequence = self._start()
        sequence.target = self._cached
        sequence.append(self._tokens[:1])
        while not sequence.finished:
            rest = self._tokens[len(sequence.generated) :]
            # The last token comes out of the pass itself.
            draft = rest[: min(self._settings.num_assistant_tokens, len(rest) - 1)]
            limits = verifier.target.limits(sparse, len(sequence.tokens) + len(draft))
            found = verifier.verify([Draft(sequence, draft, limits)])
            meter.count_pass(found.stats, found.stats.attended)
            for index, row in enumerate(found.parts[0].logits):
                yield sequence.processor.process(row, draft[:index])
            sequence.append(rest[: len(draft) + 1])

    def release(self) -> None:
        """Release the blocks of the cache."""
        self._runner.release(self._cached)

    def _start(self) -> Sequence:
        return Sequence.start(self._prompt, len(self._tokens), self._settings, 0)
