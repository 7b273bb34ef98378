"""Texts that a pipeline's engine writes in one batch, with their log probabilities."""

from __future__ import annotations

import itertools
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any

from ovspec.engine.requests.request import Request, RequestMetrics
from ovspec.errors import InvalidValueError
from ovspec.generation.detokenizer import IncrementalDetokenizer
from ovspec.generation.token_text import GraphText
from ovspec.pipeline.pipeline import LLMPipeline

_IDS = itertools.count()


@dataclass(slots=True)
class Written:
    """What was generated behind a prompt.

    Attributes:
        prompt_length: tokens of the prompt.
        tokens: of the text, without the token or the stop string that ended it.
        text: of them.
        logprobs: of each of them, under the pipeline's model.
        num_read: tokens that the model computed: those of the prompt that were not in its prefix cache, all
            that it generated, and drafts that it rejected.
        metrics: of the request.
    """

    prompt_length: int
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[float] = field(default_factory=list)
    num_read: int = 0
    metrics: RequestMetrics = field(default_factory=RequestMetrics)

    @property
    def logprob(self) -> float:
        """Log probability of the text, nats."""
        return sum(self.logprobs)


def write(
    pipeline: LLMPipeline, prompts: Sequence[Sequence[int]], stop: str, max_new_tokens: int, **options: Any
) -> list[Written]:
    """Generate greedily behind all prompts at the same time, each up to `stop`, at least one token.

    Args:
        max_new_tokens: of each.
        options: further fields of the generation configuration.

    Raises:
        ValueError: a prompt that the model has no positions for.
    """
    check_room(pipeline, prompts)
    settings = pipeline.settings(max_new_tokens=max_new_tokens, min_new_tokens=1, do_sample=False, **options)
    requests = [Request(f"rag-{next(_IDS)}", prompt, settings, logprobs=0) for prompt in prompts]
    decoder = GraphText(pipeline.get_tokenizer())
    writers = {
        request.request_id: (
            Written(len(request.prompt_token_ids)),
            IncrementalDetokenizer(decoder, (stop,), to_token_end=True, min_tokens=1),
        )
        for request in requests
    }
    handle = pipeline.engine.run(requests)
    try:
        for output in handle:
            written, detokenizer = writers[output.request_id]
            written.metrics = output.metrics
            written.num_read += len(output.token_ids)
            if detokenizer.stopped:
                continue  # it was ended here before the engine knew
            written.tokens += output.token_ids
            written.logprobs += [entry.logprob for entry in output.logprobs]
            detokenizer.update(output.token_ids)
            if detokenizer.stopped:
                handle.abort(output.request_id)
    finally:
        handle.abort()
    for written, detokenizer in writers.values():
        _finish(written, detokenizer, settings.sampling.stop_token_ids)
    return [written for written, _ in writers.values()]


def check_room(pipeline: LLMPipeline, prompts: Sequence[Sequence[int]]) -> None:
    """Refuse prompts that the model has no positions for.

    Raises:
        InvalidValueError: one of them is too long.
    """
    longest = max(map(len, prompts))
    if longest >= pipeline.max_model_len:
        raise InvalidValueError(
            f"the documents and the question have {longest} tokens, the model {pipeline.max_model_len} "
            "positions; retrieve fewer documents, or index with smaller chunks"
        )


def _finish(written: Written, detokenizer: IncrementalDetokenizer, ends: Container[int]) -> None:
    """Leave out what ended the text."""
    detokenizer.finish()
    kept = detokenizer.num_tokens
    while kept and written.tokens[kept - 1] in ends:
        kept -= 1
    del written.tokens[kept:], written.logprobs[kept:]
    written.text = detokenizer.text.strip()
    found = written.metrics
    written.num_read += written.prompt_length - found.num_cached_tokens
    written.num_read += found.num_draft_tokens - found.num_accepted_tokens
