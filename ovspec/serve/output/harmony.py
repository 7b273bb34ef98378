"""The channels of GPT-OSS's answers, read by openai-harmony: reasoning, content, calls of tools."""

from __future__ import annotations

import base64
import codecs
import logging
import os
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ovspec.serve.output.message_parser import NewCall, NewText, Piece, ToolCall

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
    """A `PartsStream` of tokens.

    Args:
        tools: names of those that may be called; other calls are content.
        begun: tokens of the answer that the prompt has behind `<|start|>assistant`; `None`: the answer
            begins with that itself.
    """

    def __init__(
        self, encoding: HarmonyEncoding, tools: Collection[str], begun: Sequence[int] | None = ()
    ) -> None:
        from openai_harmony import Role, StreamableParser

        self._encoding, self._tools = encoding, tools
        self._parser = StreamableParser(encoding, None if begun is None else Role.ASSISTANT, strict=False)
        self._is_harmony, self._has_content = True, False
        self._plain = codecs.getincrementaldecoder("utf-8")("replace")
        self._message = -1  # that the last call is
        self.calls: list[ToolCall] = []
        self.num_reasoning_tokens: int | None = None
        self._take(begun or ())
        self.num_reasoning_tokens = None  # those of the prompt are not the answer's

    def add(self, text: str, finished: bool, tokens: Sequence[int] = ()) -> list[Piece]:
        """As of `PartsStream`; the text is not looked at."""
        pieces = self._take(tokens)
        if finished and self._is_harmony and not self._has_content:
            # No message has begun: what came is no header.
            _append(pieces, NewText("content", self._encoding.decode(self._parser.tokens)))
        if finished:
            _append(pieces, NewText("content", self._plain.decode(b"", final=True)))
        return pieces

    def _take(self, tokens: Sequence[int]) -> list[Piece]:
        from openai_harmony import HarmonyError

        pieces: list[Piece] = []
        for place, token in enumerate(tokens):
            if self._is_harmony:
                try:
                    self._parser.process(token)
                except HarmonyError:
                    self._is_harmony = False
            if not self._is_harmony:
                # A token may hold a part of a character.
                data = self._encoding.decode(tokens[place:], "surrogateescape")
                text = self._plain.decode(data.encode("utf-8", "surrogateescape"))
                _append(pieces, NewText("content", text))
                break
            if (piece := self._sorted()) is not None:
                _append(pieces, piece)
        return pieces

    def _sorted(self) -> Piece | None:
        """What the last token has added to its channel."""
        parser = self._parser
        channel, to, text = parser.current_channel, parser.current_recipient or "", parser.last_content_delta
        if channel is None:
            return None
        self._has_content = True
        name = to.removeprefix(_FUNCTIONS)
        if to.startswith(_FUNCTIONS) and name in self._tools:
            return self._called(name, text or "")
        if channel == "analysis":
            self.num_reasoning_tokens = (self.num_reasoning_tokens or 0) + (text is not None)
            return NewText("reasoning", text or "")
        return NewText("content", text or "")

    def _called(self, name: str, text: str) -> NewCall:
        message = len(self._parser.messages)
        is_first = message != self._message
        if is_first:
            self._message = message
            self.calls.append(ToolCall(name, ""))
        call = self.calls[-1]
        call.arguments += text
        return NewCall(len(self.calls) - 1, replace(call, arguments=text), is_first)


def _append(pieces: list[Piece], new: Piece) -> None:
    """Add a piece, to the last one where it goes on with that."""
    last = pieces[-1] if pieces else None
    if isinstance(new, NewCall):
        if isinstance(last, NewCall) and last.index == new.index:
            last.call.arguments += new.call.arguments
        elif new.is_first or new.call.arguments:
            pieces.append(new)
    elif isinstance(last, NewText) and last.kind == new.kind:
        last.text += new.text
    elif new.text:
        pieces.append(new)
