"""The channels of GPT-OSS's answers, read by openai-harmony: reasoning, content, calls of tools."""

from __future__ import annotations

import base64
import logging
import os
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ovspec.serve.message_parser import Change, Parts, ToolCall

if TYPE_CHECKING:
    from openai_harmony import HarmonyEncoding

_LOG = logging.getLogger(__name__)
_FUNCTIONS = "functions."
# Tokens of o200k_base, which those of the format follow.
_NUM_TOKENS = 199_998
_FOLDER = "TIKTOKEN_ENCODINGS_BASE"


def is_harmony(template: str) -> bool:
    """Whether a chat template writes in this format."""
    return "<|channel|>" in template and "<|start|>" in template


def harmony_encoding(tokens: Sequence[bytes]) -> HarmonyEncoding | None:
    """The format, or `None`, with a warning, where the extra is missing or the model has other tokens.

    openai-harmony would fetch its vocabulary from the network. The model has the same one, so it is written
    to a folder that it looks into; it compares a hash.

    Args:
        tokens: the bytes of the model's tokens.
    """
    try:
        from openai_harmony import HarmonyEncodingName, HarmonyError, load_harmony_encoding
    except ImportError:
        _LOG.warning("the channels of this model's answers are not read: `pip install ovspec[harmony]`")
        return None
    before = os.environ.get(_FOLDER)
    with tempfile.TemporaryDirectory() as folder:
        lines = (
            b"%s %d\n" % (base64.b64encode(data), rank) for rank, data in enumerate(tokens[:_NUM_TOKENS])
        )
        Path(folder, "o200k_base.tiktoken").write_bytes(b"".join(lines))
        os.environ[_FOLDER] = folder
        try:
            return load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
        except HarmonyError as error:
            _LOG.warning(
                "the channels of this model's answers are not read: its tokens are others (%s)", error
            )
            return None
        finally:
            os.environ.pop(_FOLDER)
            if before is not None:
                os.environ[_FOLDER] = before


def begun_answer(encoding: HarmonyEncoding, prompt: Sequence[int]) -> list[int]:
    """The tokens of a prompt behind its last `<|start|>assistant`."""
    mark = encoding.encode("<|start|>assistant", allowed_special="all")
    ends = (end for end in range(len(prompt), 0, -1) if list(prompt[end - len(mark) : end]) == mark)
    return list(prompt[next(ends, len(prompt)) :])


class HarmonyStream:
    """What is new in the parts of one answer, whose tokens stand behind `<|start|>assistant`.

    Args:
        begun: tokens of the answer that the prompt has already.
        tools: names of those that may be called; other calls are content.
    """

    def __init__(self, encoding: HarmonyEncoding, tools: Collection[str], begun: Sequence[int] = ()) -> None:
        from openai_harmony import Role, StreamableParser

        self._encoding, self._tools = encoding, tools
        self._parser = StreamableParser(encoding, Role.ASSISTANT, strict=False)
        self._is_harmony, self._has_content = True, False
        self._places: dict[int, int] = {}  # of calls, by the message that each is
        self.calls: list[ToolCall] = []
        self.num_reasoning_tokens: int | None = None
        self._take(begun)

    def add(self, text: str, finished: bool, tokens: Sequence[int] = ()) -> tuple[Parts, list[Change]]:
        """As of `MessageStream`; the text is not looked at."""
        new, changed = self._take(tokens)
        if finished and not self._has_content:
            # No message has begun: what came is no header.
            new.content = self._encoding.decode_utf8(self._parser.tokens) if self._is_harmony else new.content
        for call in self.calls if finished else ():
            call.whole = True
        return new, changed

    def _take(self, tokens: Sequence[int]) -> tuple[Parts, list[Change]]:
        from openai_harmony import HarmonyError

        new, changed = Parts(), list[Change]()
        for place, token in enumerate(tokens):
            if self._is_harmony:
                try:
                    self._parser.process(token)
                except HarmonyError:
                    self._is_harmony = False
            if not self._is_harmony:
                new.content += self._encoding.decode_utf8(tokens[place:])
                break
            self._sort(new, changed)
        return new, changed

    def _sort(self, new: Parts, changed: list[Change]) -> None:
        """Note what the last token has added to its channel."""
        parser = self._parser
        channel, to, text = parser.current_channel, parser.current_recipient or "", parser.last_content_delta
        if channel is None:
            return
        self._has_content = True
        name = to.removeprefix(_FUNCTIONS)
        if to.startswith(_FUNCTIONS) and name in self._tools:
            self._call(name, text or "", changed)
        elif channel == "analysis":
            new.reasoning += text or ""
            self.num_reasoning_tokens = (self.num_reasoning_tokens or 0) + (text is not None)
        else:
            new.content += text or ""

    def _call(self, name: str, text: str, changed: list[Change]) -> None:
        message = len(self._parser.messages)
        is_first = message not in self._places
        if is_first:
            self._places[message] = len(self.calls)
            self.calls.append(ToolCall(name, "", False))
        call = self.calls[self._places[message]]
        call.arguments += text
        if is_first or text:
            changed.append((self._places[message], ToolCall(name, text, False, call.id), is_first))
