"""The objects of `/v1/responses`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial

from ovspec.serve.calls import Call
from ovspec.serve.output.choice import Choice, Delta
from ovspec.serve.output.message_parser import PartsStream
from ovspec.serve.output.objects import Json, Objects, logprob_entry
from ovspec.serve.output.response_output import ResponseOutput
from ovspec.serve.requests.api_error import ApiError
from ovspec.serve.requests.response_bodies import ResponseBody
from ovspec.serve.requests.tool_fields import Function
from ovspec.serve.served_model import ServedModel
from ovspec_models.folder.jsonl import json_line

# What a chat calls the fields of a response, the longest first.
_NAMES = {
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "messages": "input",
}


class ResponseObjects(Objects):
    """The objects of one response.

    Args:
        body: that asks for it.
        logprobs, parts: as of `ChatObjects`.
    """

    done = b""

    def __init__(
        self, body: ResponseBody, model: str, logprobs: int | None, parts: Callable[[], PartsStream]
    ) -> None:
        super().__init__("resp", "response", model, logprobs)
        self._output, self._num_events = ResponseOutput(parts()), 0
        self._response: Json = {
            **{name: self.fields[name] for name in ("id", "object", "model")},
            "created_at": self.fields["created"],
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "output": self._output.items,
            "usage": None,
            **_settings(body),
        }

    def encoded(self, event: Json) -> bytes:
        """An event with its number."""
        self._num_events += 1
        text = json.dumps({**event, "sequence_number": self._num_events - 1}, ensure_ascii=False)
        return f"event: {event['type']}\ndata: {json_line(text)}\n\n".encode()

    def failed(self, error: ApiError) -> bytes:
        """The event of a fault."""
        fault = {"code": "server_error", "message": error.message}
        self._response |= {"status": "failed", "error": fault}
        return self.encoded({"type": "response.failed", "response": self._response})

    def begin(self, count: int) -> list[Json]:
        """The response without its output."""
        names = ("response.created", "response.in_progress")
        return [{"type": name, "response": {**self._response, "output": []}} for name in names]

    def chunk(self, index: int, delta: Delta) -> list[Json]:
        """New text, reasoning and calls."""
        logprobs = [] if self._logprobs is None else [logprob_entry(one) for one in delta.logprobs]
        return self._output.add(delta.text, logprobs, delta.finish_reason, delta.tokens)

    def end(self, choices: Sequence[Choice], usage: Json, metrics: Json, with_usage: bool) -> list[Json]:
        """The whole response."""
        response = self._ended(choices[0], usage, metrics)
        return [{"type": f"response.{response['status']}", "response": response}]

    def whole(self, choices: Sequence[Choice], deltas: Sequence[Delta], usage: Json, metrics: Json) -> Json:
        """The response."""
        deltas[0].text, deltas[0].finish_reason = choices[0].text, choices[0].finish_reason
        self.chunk(0, deltas[0])
        return self._ended(choices[0], usage, metrics)

    def _ended(self, choice: Choice, usage: Json, metrics: Json) -> Json:
        was_cut = choice.finish_reason == "length"
        counts = {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": self._num_reasoning_tokens(choice)},
            "total_tokens": usage["total_tokens"],
        }
        return {
            **self._response,
            "status": "incomplete" if was_cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if was_cut else None,
            "usage": counts,
            "metrics": metrics,
        }

    def _num_reasoning_tokens(self, choice: Choice) -> int:
        if not any(item["type"] == "reasoning" for item in self._output.items):
            return 0
        if (known := self._output.num_reasoning_tokens) is not None:
            return known
        before, mark, _ = choice.text.partition("</think>")
        return sum(end <= len(before + mark) for end in choice.token_ends)


def _settings(body: ResponseBody) -> Json:
    """What a response says of the body that it answers."""
    form = body.text.format if body.text is not None else None
    reasoning = body.reasoning
    choice = body.tool_choice or "auto"
    return {
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": None if reasoning is None else reasoning.effort, "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": body.temperature,
        "text": {"format": {"type": "text"} if form is None else form.model_dump(by_alias=True)},
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
        "tools": [tool.model_dump(include={"type", *Function.model_fields}) for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": body.top_p,
        "truncation": "disabled",
        "user": body.user,
    }


def call_of_response(body: ResponseBody, model: ServedModel, arrived: float) -> Call:
    """A body as a call; arguments and errors as of `Call.of`."""
    try:
        return Call.of(body.chat(), model, arrived, partial(ResponseObjects, body))
    except ApiError as error:
        raise _renamed(error) from error


def _renamed(error: ApiError) -> ApiError:
    """A refusal of a chat with the names that its fields have here."""
    message, param = error.message, error.param
    for old, new in _NAMES.items():
        if message.startswith(old) or (param or "").startswith(old):
            message = new + message.removeprefix(old) if message.startswith(old) else message
            return ApiError(error.status, message, new.partition(".")[0], error.code, error.retry_after)
    return error
