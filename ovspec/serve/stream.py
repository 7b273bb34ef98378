"""The way of outputs from the engine's thread to the requests that wait for them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque

from ovspec.engine.requests.request import RequestOutput
from ovspec.serve.counts import AnswerClock
from ovspec.serve.server_limits import Slot

_LOG = logging.getLogger(__name__)


class Mailbox:
    """Hands outputs to the event loop; one wake-up serves all outputs of a step."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._posted: deque[tuple[OutputStream, RequestOutput]] = deque()
        self._scheduled = False

    def post(self, stream: OutputStream, output: RequestOutput) -> None:
        """Called in the engine's thread."""
        with self._lock:
            self._posted.append((stream, output))
            if self._scheduled:
                return
            self._scheduled = True
        with contextlib.suppress(RuntimeError):  # the loop has ended, at a second signal
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            posted, self._posted, self._scheduled = self._posted, deque(), False
        for stream, output in posted:
            try:
                stream.put(output)
            except Exception:
                # The other requests get theirs.
                _LOG.exception("ovspec: an output of request %r failed", output.request_id)


class OutputStream:
    """Outputs of one request that nobody has read yet, joined to one.

    What waits for a slow reader is bounded by the longest answer: outputs are joined, not queued.

    Args:
        index: of the choice in its request.
        ready: where the stream puts itself when it has something.
        clock: times and counts the outputs as they come, not as they are read.
        slot: is free as soon as the engine has finished, whether or not the client has read.
    """

    def __init__(
        self, index: int, ready: asyncio.Queue[OutputStream | Exception], clock: AnswerClock, slot: Slot
    ) -> None:
        self.index, self.clock, self.slot = index, clock, slot
        self._ready = ready
        self._waiting: RequestOutput | None = None

    def put(self, output: RequestOutput) -> None:
        """Add an output; called in the event loop."""
        if self._waiting is None:
            self._waiting = output
            self._ready.put_nowait(self)
        else:
            self._waiting = joined(self._waiting, output)
        if output.finished:
            self.slot.free()
        self.clock.output(output)  # last: the reader has the output, whatever becomes of the counters

    def take(self) -> RequestOutput:
        """What has come since the last call."""
        output, self._waiting = self._waiting, None
        assert output is not None
        return output


def joined(first: RequestOutput, second: RequestOutput) -> RequestOutput:
    """Two outputs of a request as one."""
    return RequestOutput(
        request_id=first.request_id,
        token_ids=[*first.token_ids, *second.token_ids],
        writers=[*first.writers, *second.writers],
        logprobs=[*first.logprobs, *second.logprobs],
        prompt_logprobs=[*first.prompt_logprobs, *second.prompt_logprobs],
        finish_reason=second.finish_reason,
        metrics=second.metrics,
        error=second.error,
        blocks_read=second.blocks_read,
        beams=second.beams,
    )
