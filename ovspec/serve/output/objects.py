"""OpenAI's objects: completions, chunks of streams, log probabilities, usage, with ovspec's metrics."""

from __future__ import annotations

import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise, zip_longest
from typing import Any

from ovspec.engine.requests.request import RequestMetrics
from ovspec.generation.token_text import Piece
from ovspec.serve.output.choice import Choice, Delta
from ovspec.serve.output.message_parser import NewCall, PartsStream, ToolCall, text_of
from ovspec.serve.output.prompt_logprobs import NamedLogprobs
from ovspec.serve.requests.api_error import ApiError
from ovspec_models.folder.jsonl import json_line

Json = dict[str, Any]


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _to_json(value: object) -> str:
    return json_line(_encode(value))


class Objects(ABC):
    """Makes the objects of one answer to a request, and the events of its stream.

    Attributes:
        fields: those that all events of a stream have alike.
        done: what a stream ends with.
    """

    done = b"data: [DONE]\n\n"

    def __init__(self, prefix: str, kind: str, model: str, logprobs: int | None) -> None:
        self.id = f"{prefix}-{uuid.uuid4().hex}"
        self._logprobs = logprobs
        self.fields: Json = {"id": self.id, "object": kind, "created": int(time.time()), "model": model}

    @cached_property
    def _begin_of_events(self) -> bytes:
        """Written once: it is longer than what is new in a chunk of one token."""
        return f"data: {_to_json(self.fields)[:-1]},".encode()

    def encoded(self, event: Json) -> bytes:
        """An event as it is sent."""
        return self._begin_of_events + _to_json(event)[1:].encode() + b"\n\n"

    def failed(self, error: ApiError) -> bytes:
        """The event of a fault, as it is sent."""
        return b"data: " + _to_json(error.body()).encode() + b"\n\n"

    def begin(self, count: int) -> list[Json]:
        """Events before any text of so many choices."""
        return []

    @abstractmethod
    def chunk(self, index: int, delta: Delta) -> list[Json]:
        """Events of what is new in a choice, which may be none."""

    def end(self, choices: Sequence[Choice], usage: Json, metrics: Json, with_usage: bool) -> list[Json]:
        """Events behind all choices."""
        return [{"choices": [], "usage": usage, "metrics": metrics}] if with_usage else []

    @abstractmethod
    def whole(self, choices: Sequence[Choice], deltas: Sequence[Delta], usage: Json, metrics: Json) -> Json:
        """The answer without streaming; `deltas` hold each choice from begin to end."""

    def _origins(self, delta: Delta) -> Json:
        if not delta.pieces:
            return {}
        return {"token_origins": [{"text": text, "origin": writer} for text, writer in delta.pieces]}


class ChatObjects(Objects):
    """Objects of `/v1/chat/completions`.

    Args:
        logprobs: how many alternatives to show per token; `None`: no log probabilities.
        parts: makes what finds the parts of an answer.
    """

    def __init__(self, model: str, logprobs: int | None, parts: Callable[[], PartsStream]) -> None:
        super().__init__("chatcmpl", "chat.completion.chunk", model, logprobs)
        self._parts = parts
        self._streams: dict[int, PartsStream] = {}

    def begin(self, count: int) -> list[Json]:
        """The roles of the messages."""
        fields = {"delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        return [{"choices": [{"index": index, **fields}]} for index in range(count)]

    def chunk(self, index: int, delta: Delta) -> list[Json]:
        """What is new of a message."""
        if index not in self._streams:
            self._streams[index] = self._parts()
        stream = self._streams[index]
        pieces = stream.add(delta.text, delta.finish_reason is not None, delta.tokens)
        texts = {"content": text_of(pieces, "content"), "reasoning_content": text_of(pieces, "reasoning")}
        content: Json = {name: text for name, text in texts.items() if text}
        if calls := [_new_of_call(piece) for piece in pieces if isinstance(piece, NewCall)]:
            content["tool_calls"] = calls
        if not content and not delta.shows:
            return []
        if not content and not delta.finish_reason:
            content = {"content": ""}
        choice = {"index": index, "delta": content, "logprobs": self._logprobs_of(delta)}
        reason = _reason(delta.finish_reason, stream.calls)
        return [{"choices": [{**choice, "finish_reason": reason, **self._origins(delta)}]}]

    def whole(self, choices: Sequence[Choice], deltas: Sequence[Delta], usage: Json, metrics: Json) -> Json:
        """The messages."""
        entries = []
        for index, (choice, delta) in enumerate(zip(choices, deltas, strict=True)):
            stream = self._parts()
            pieces = stream.add(choice.text, True, delta.tokens)
            content = text_of(pieces, "content") or (None if stream.calls else "")
            message: Json = {"role": "assistant", "content": content, "refusal": None}
            if reasoning := text_of(pieces, "reasoning"):
                message["reasoning_content"] = reasoning
            if stream.calls:
                message["tool_calls"] = [_call(call) for call in stream.calls]
            entries.append(
                {
                    "index": index,
                    "message": message,
                    "logprobs": self._logprobs_of(delta),
                    "finish_reason": _reason(choice.finish_reason, stream.calls),
                    **self._origins(delta),
                }
            )
        kind = {"object": "chat.completion"}
        return {**self.fields, **kind, "choices": entries, "usage": usage, "metrics": metrics}

    def _logprobs_of(self, delta: Delta) -> Json | None:
        if self._logprobs is None:
            return None
        return {"content": [logprob_entry(one) for one in delta.logprobs], "refusal": None}


class CompletionObjects(Objects):
    """Objects of `/v1/completions`; arguments as of `ChatObjects`."""

    def __init__(self, model: str, logprobs: int | None) -> None:
        super().__init__("cmpl", "text_completion", model, logprobs)

    def chunk(self, index: int, delta: Delta) -> list[Json]:
        """New text."""
        if not delta.shows:
            return []
        return [{"choices": [self._choice(index, delta.text, delta, delta.finish_reason)]}]

    def whole(self, choices: Sequence[Choice], deltas: Sequence[Delta], usage: Json, metrics: Json) -> Json:
        """The texts."""
        entries = [
            self._choice(index, choice.text, delta, choice.finish_reason)
            for index, (choice, delta) in enumerate(zip(choices, deltas, strict=True))
        ]
        return {**self.fields, "choices": entries, "usage": usage, "metrics": metrics}

    def _choice(self, index: int, text: str, delta: Delta, reason: str | None) -> Json:
        logprobs = self._logprobs_of(delta)
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        return {**choice, **self._origins(delta)}

    def _logprobs_of(self, delta: Delta) -> Json | None:
        if self._logprobs is None:
            return None
        return {
            "tokens": [one.piece.text for one in delta.logprobs],
            "token_logprobs": [one.logprob for one in delta.logprobs],
            "top_logprobs": [_by_name(one) for one in delta.logprobs] if self._logprobs else None,
            "text_offset": [one.offset for one in delta.logprobs],
        }


def _call(call: ToolCall) -> Json:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _new_of_call(new: NewCall) -> Json:
    return {
        "index": new.index,
        **(_call(new.call) if new.is_first else {"function": {"arguments": new.call.arguments}}),
    }


def _reason(reason: str | None, calls: Sequence[ToolCall]) -> str | None:
    """Why a message ended; who asked for calls looks for this word, and makes them."""
    may_be_made = reason == "stop" and calls and all(call.is_whole for call in calls)
    return "tool_calls" if may_be_made else reason


def logprob_entry(one: NamedLogprobs) -> Json:
    """A token of a message with its log probability, and those that might have stood there."""
    top = [_entry(piece, value) for _, piece, value in one.top]
    return {**_entry(one.piece, one.logprob), "top_logprobs": top}


def _entry(piece: Piece, logprob: float | None) -> Json:
    return {"token": piece.text, "logprob": logprob, "bytes": list(piece.data)}


def _by_name(one: NamedLogprobs) -> Json | None:
    """The most probable tokens by their names, and the one that stands there, which may be none of them.

    Of tokens with one name, the others go by their id.
    """
    found: Json = {}
    if one.logprob is None:
        return None  # nothing precedes the first token of a prompt
    known = any(token == one.token for token, *_ in one.top)
    for token, piece, value in [*one.top, *([] if known else [(one.token, one.piece, one.logprob)])]:
        found[f"token_id:{token}" if piece.text in found else piece.text] = value
    return found


def usage_of(num_prompt_tokens: int, choices: Sequence[Choice], n: int) -> Json:
    """Tokens that a request took; those of the prompt count once per prompt."""
    completion = sum(choice.num_tokens for choice in choices)
    cached = sum(
        max(choice.metrics.num_cached_tokens for choice in choices[first : first + n])
        for first in range(0, len(choices), n)
    )
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": num_prompt_tokens + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def metrics_of(all_metrics: Sequence[RequestMetrics], verify: str, num_spec_tokens: int) -> Json:
    """What was drafted, read and promised, over the choices of a request.

    `speculative_decoding` has the fields of vLLM's `--per-request-spec-decode-metrics summary`.

    Args:
        num_spec_tokens: draft tokens of a step, at most.
    """
    drafts = sum(one.num_drafts for one in all_metrics)
    proposed = sum(one.num_draft_tokens for one in all_metrics)
    accepted = sum(one.num_accepted_tokens for one in all_metrics)
    per_position = zip_longest(*(one.num_accepted_tokens_per_pos for one in all_metrics), fillvalue=0)
    at_least = [drafts, *map(sum, per_position), 0]
    return {
        "speculative_decoding": {
            "mean_acceptance_length": 1 + accepted / drafts if drafts else 1.0,
            "draft_acceptance_rate": accepted / proposed if proposed else 0.0,
            "acceptance_histogram": [more - fewer for more, fewer in pairwise(at_least)],
            "num_spec_steps": drafts,
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": proposed,
            "num_spec_tokens": num_spec_tokens,
        },
        "attention_density": sum(one.attention_density for one in all_metrics) / max(1, len(all_metrics)),
        "prefill_density": sum(one.prefill_density for one in all_metrics) / max(1, len(all_metrics)),
        "is_lossy": any(one.is_lossy for one in all_metrics),
        "verify": verify,
    }
