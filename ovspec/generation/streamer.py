"""Streaming: one interface for the kinds of `streamer` that openvino_genai accepts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from openvino_genai import StreamerBase, StreamingStatus, TextParserStreamer

from ovspec.errors import InvalidTypeError

Streamer: TypeAlias = "Callable[[str], StreamingStatus | bool | int | None] | StreamerBase"


class OutputStream:
    """Gives pieces of text to a callable, or tokens to a `StreamerBase`.

    Raises:
        ValueError: the streamer is neither.
    """

    def __init__(self, streamer: Streamer | None) -> None:
        if streamer is not None and not isinstance(streamer, StreamerBase) and not callable(streamer):
            raise InvalidTypeError(
                f"streamer={type(streamer).__name__}: expected a callable that takes text, or a StreamerBase"
            )
        self._streamer = streamer

    @property
    def takes_text(self) -> bool:
        """Whether the streamer takes text, and not tokens."""
        return self._streamer is not None and not isinstance(self._streamer, StreamerBase)

    def write(self, tokens: Sequence[int], text: str) -> StreamingStatus:
        """Give new output to the streamer; return the status that it answers."""
        streamer = self._streamer
        if isinstance(streamer, TextParserStreamer):
            # Its `write` is the user's and takes a message. This decodes, runs the parsers, and calls it.
            return _status(streamer._write(list(tokens)) if tokens else None)
        if isinstance(streamer, StreamerBase):
            return _status(streamer.write(list(tokens)) if tokens else None)
        return _status(streamer(text) if streamer is not None and text else None)

    @property
    def parsed(self) -> list[dict[str, object]]:
        """The message that the parsers of a `TextParserStreamer` made of the whole text."""
        streamer = self._streamer
        return [streamer.get_parsed_message()] if isinstance(streamer, TextParserStreamer) else []

    def end(self) -> None:
        """Close the stream."""
        if isinstance(self._streamer, StreamerBase):
            self._streamer.end()


def _status(answer: object) -> StreamingStatus:
    if isinstance(answer, StreamingStatus):
        return answer
    if answer is not None and not isinstance(answer, (int, np.bool_)):
        raise InvalidTypeError(
            f"streamer: it answered {answer!r}; expected None, a bool or a StreamingStatus (None goes on)"
        )
    # As in openvino_genai: None and False go on, True (or any other number) stops.
    return StreamingStatus.STOP if answer else StreamingStatus.RUNNING
