"""The items of an answer of `/v1/responses`, and the events of their coming."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from copy import deepcopy

from ovspec.serve.output.message_parser import NewText, PartsStream, ToolCall
from ovspec.serve.output.objects import Json

# What the events of an item's text are called, and which part of the item the text stands in.
_EVENTS = {
    "message": "response.output_text",
    "reasoning": "response.reasoning_text",
    "function_call": "response.function_call_arguments",
}
_PARTS: dict[str, Json] = {
    "message": {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
    "reasoning": {"type": "reasoning_text", "text": ""},
}
_FIELDS: dict[str, Json] = {
    "message": {"role": "assistant", "content": []},
    "reasoning": {"summary": [], "content": []},
}
_KINDS = {"reasoning": "reasoning", "content": "message"}
_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}


class ResponseOutput:
    """The items of one answer as it grows: reasoning, a message, calls of functions.

    Attributes:
        items: as far as they have come.
    """

    def __init__(self, stream: PartsStream) -> None:
        self._stream = stream
        self._logprobs: list[Json] = []  # of tokens whose text has not come
        self.items: list[Json] = []

    def add(
        self, text: str, logprobs: Sequence[Json], reason: str | None, tokens: Sequence[int] = ()
    ) -> list[Json]:
        """Take new text; the events of it, without their numbers.

        Args:
            logprobs, tokens: that it came of.
            reason: why the answer ended; `None`: it goes on.
        """
        self._logprobs += logprobs
        events: list[Json] = []
        for piece in self._stream.add(text, reason is not None, tokens):
            if isinstance(piece, NewText):
                events += self._more(_KINDS[piece.kind], piece.text)
                continue
            if piece.is_first:
                events += self._open("function_call", piece.call)
            events += self._more("function_call", piece.call.arguments)
        if reason is not None:
            events += [] if self.items else self._open("message")
            events += self._close("incomplete" if reason == "length" else "completed")
            # Calls have no place for those of their tokens, a message has, as in an answer that comes whole.
            messages = [item for item in self.items if item["type"] == "message"]
            if messages:
                messages[-1]["content"][0]["logprobs"] += self._logprobs
        return events

    @property
    def num_reasoning_tokens(self) -> int | None:
        """As of `PartsStream`."""
        return self._stream.num_reasoning_tokens

    @property
    def _kind(self) -> str | None:
        """Of the item that is written now."""
        return self.items[-1]["type"] if self.items else None

    def _open(self, kind: str, call: ToolCall | None = None) -> list[Json]:
        events = self._close("completed")
        item: Json = {"type": kind, "id": f"{_PREFIXES[kind]}_{uuid.uuid4().hex}", "status": "in_progress"}
        if call is not None:
            item |= {"call_id": call.id, "name": call.name, "arguments": ""}
        else:
            item |= deepcopy(_FIELDS[kind])
        self.items.append(item)
        place = len(self.items) - 1
        added = {"type": "response.output_item.added", "output_index": place, "item": deepcopy(item)}
        events.append(added)
        if call is None:
            item["content"].append(deepcopy(_PARTS[kind]))
            part = deepcopy(item["content"][0])
            events.append({"type": "response.content_part.added", **self._place(), "part": part})
        return events

    def _more(self, kind: str, text: str) -> list[Json]:
        events = [] if self._kind == kind else self._open(kind)
        event = {"type": f"{_EVENTS[kind]}.delta", **self._place(), "delta": text}
        if kind == "function_call":
            self.items[-1]["arguments"] += text
        else:
            self.items[-1]["content"][0]["text"] += text
        if kind == "message":
            event["logprobs"] = self._take_logprobs()
        return [*events, event] if text else events

    def _take_logprobs(self) -> list[Json]:
        taken, self._logprobs = self._logprobs, []
        self.items[-1]["content"][0]["logprobs"] += taken
        return taken

    def _close(self, status: str) -> list[Json]:
        """End the item that is written now."""
        if not self.items or self.items[-1]["status"] != "in_progress":
            return []
        item, kind = self.items[-1], str(self._kind)
        was_cut = kind == "function_call" and not ToolCall(item["name"], item["arguments"]).is_whole
        item["status"] = "incomplete" if was_cut else status
        done: Json = {"type": f"{_EVENTS[kind]}.done", **self._place()}
        if kind == "function_call":
            events = [{**done, "name": item["name"], "arguments": item["arguments"]}]
        else:
            if kind == "message":
                self._take_logprobs()  # of an end-of-sequence token, for instance
                done["logprobs"] = list(item["content"][0]["logprobs"])
            part = deepcopy(item["content"][0])
            whole = {"type": "response.content_part.done", **self._place(), "part": part}
            events = [{**done, "text": part["text"]}, whole]
        ended = {"output_index": len(self.items) - 1, "item": deepcopy(item)}
        return [*events, {"type": "response.output_item.done", **ended}]

    def _place(self) -> Json:
        place: Json = {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}
        return place if self._kind == "function_call" else {**place, "content_index": 0}
