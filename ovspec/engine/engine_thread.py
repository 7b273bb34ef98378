"""One engine for several threads: whoever waits for an answer steps it, or a thread of its own does."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf

from ovspec.devices.freed_memory import give_back_freed_memory
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.requests.request import Request, RequestOutput
from ovspec.errors import EngineClosedError, InvalidValueError

_LOG = logging.getLogger(__name__)

# Seconds. The C library keeps what requests free: the resident memory of a server rose by 2 % in ten minutes
# of load, with no more memory in use. Returning it takes up to 10 ms.
_GIVE_BACK_EVERY = 30.0

OnOutput = Callable[[RequestOutput], object]


class RequestHandle:
    """The outputs of requests that were given together; iterate over it in any one thread.

    Made by `EngineThread.submit` and `EngineThread.run`.
    """

    def __init__(self, owner: EngineThread, ids: set[str], on_output: OnOutput | None) -> None:
        self._owner = owner
        self.open_ids = ids
        self.on_output = on_output
        self.outputs: deque[RequestOutput] = deque()
        self.wake = threading.Condition(owner.lock)
        self.waits = False

    def __iter__(self) -> Iterator[RequestOutput]:
        """Every output as it comes, until all of the requests have ended.

        Raises:
            Exception: what one of the requests failed with.
        """
        while (output := self._owner.next_output(self)) is not None:
            if output.error is not None:
                raise output.error
            yield output

    def abort(self, request_id: str | None = None) -> None:
        """End one request, or all that still run; they are freed before the next step."""
        self._owner.abort(list(self.open_ids) if request_id is None else [request_id])


class EngineThread:
    """Lends an engine to several threads.

    Requests of all threads share its passes. Without a thread of its own (`start`), whichever of the waiting
    threads comes first steps the engine, for all of them.

    Args:
        engine: nobody else may use it.
    """

    def __init__(self, engine: LLMEngine) -> None:
        self.engine = engine
        self.lock = threading.RLock()  # a callback may abort and submit
        self._work = threading.Condition(self.lock)
        self._inbox: list[Request] = []
        self._aborted: list[str] = []
        self._handles: dict[str, RequestHandle] = {}
        self._steps = False
        self._closing = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Step in a thread of its own from now on, until `close`."""
        with self.lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="ovspec engine", daemon=True)
                self._thread.start()

    def submit(self, request: Request, on_output: OnOutput | None = None) -> RequestHandle:
        """Give a request to the engine's own thread, which is started if need be.

        Args:
            request: what to answer.
            on_output: called with every output, in the engine's thread, and must return at once; without it,
                iterate over the handle.

        Raises:
            ValueError: as `LLMEngine.check`.
            RuntimeError: the engine is closed.
        """
        handle = self.run([request], on_output)
        self.start()
        return handle

    def run(self, requests: SequenceOf[Request], on_output: OnOutput | None = None) -> RequestHandle:
        """Give requests to the engine; iterating over the handle steps it where no thread of its own does.

        Raises:
            ValueError: as `LLMEngine.check`.
            RuntimeError: the engine is closed.
        """
        for request in requests:
            self.engine.check(request)
        with self.lock:
            if self._closing:
                raise EngineClosedError("the engine is closed: it takes no requests")
            ids = {request.request_id for request in requests}
            if len(ids) < len(requests) or not ids.isdisjoint(self._handles):
                raise InvalidValueError(
                    "request_id: two requests that run have the same one; give each its own"
                )
            handle = RequestHandle(self, ids, on_output)
            self._handles |= dict.fromkeys(ids, handle)
            self._inbox += requests
            self._work.notify()
        return handle

    def abort(self, ids: SequenceOf[str]) -> None:
        """End requests: at once if no step runs, else before the next one."""
        with self.lock:
            self._aborted += [name for name in ids if name in self._handles]
            if not self._steps:
                self._deliver(self._admit())
            self._work.notify()

    def close(self, finish: bool = True) -> None:
        """Take no more requests, and end the thread.

        Args:
            finish: whether what runs is finished first; else it is aborted.
        """
        with self.lock:
            self._closing = True
            if not finish:
                self._aborted += self._handles
            self._work.notify()
        if self._thread is not None:
            self._thread.join()

    @property
    def lives(self) -> bool:
        """Whether requests are taken and answered."""
        return not self._closing and (self._thread is None or self._thread.is_alive())

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs or waits."""
        return not self._handles

    def next_output(self, handle: RequestHandle) -> RequestOutput | None:
        """The next output of a handle; steps the engine where that is this thread's turn."""
        while True:
            with self.lock:
                while not handle.outputs:
                    if not handle.open_ids:
                        return None
                    if not self._steps and self._thread is None:
                        self._steps = True
                        break
                    handle.waits = True
                    handle.wake.wait()
                    handle.waits = False
                else:
                    output = handle.outputs.popleft()
                    if output.finished:
                        handle.open_ids.discard(output.request_id)
                    return output
            self._step(handle)

    def _step(self, handle: RequestHandle | None) -> None:
        """Run one step; the caller has set `_steps`."""
        outputs: list[RequestOutput] = []
        try:
            with self.lock:
                outputs += self._admit()
            outputs += self.engine.step()
        except Exception as error:
            # No fault of a request or of a pass comes here: the engine can't go on with any of them.
            _LOG.exception("ovspec: the engine failed, and its requests with it")
            outputs += self.engine.drop_all(error)
        except BaseException:  # Ctrl-C ends the calls of this thread only
            self.engine.recover()
            with self.lock:
                self._aborted += handle.open_ids if handle else list(self._handles)
            raise
        finally:
            with self.lock:
                self._steps = False
                self._deliver(outputs)
                self._work.notify()

    def _admit(self) -> list[RequestOutput]:
        """Hand new and aborted requests to the engine; outputs of those that end by it."""
        outputs = list[RequestOutput]()
        while self._inbox:  # Ctrl-C may come at any place, and no request must be lost
            try:
                self.engine.add_request(self._inbox[0])
            except Exception as error:
                outputs.append(RequestOutput(self._inbox[0].request_id, error=error))
            del self._inbox[0]
        for name in self._aborted:
            self.engine.abort(name)
        self._aborted = []
        return outputs + self.engine.end_aborted()

    def _deliver(self, outputs: SequenceOf[RequestOutput]) -> None:
        for output in outputs:
            handle = self._handles.get(output.request_id)
            if handle is None:
                continue  # aborted before the same step failed: it has its last output
            if output.finished:
                del self._handles[output.request_id]
            if handle.on_output is not None:
                try:
                    handle.on_output(output)
                except Exception:
                    # The other requests go on.
                    _LOG.exception("ovspec: the callback of request %r failed", output.request_id)
            else:
                handle.outputs.append(output)
                handle.wake.notify()
        if self._thread is None:
            # Those with outputs may be busy with them for long: another one steps meanwhile.
            waiting = (handle for handle in self._handles.values() if handle.waits and not handle.outputs)
            if (other := next(waiting, None)) is not None:
                other.wake.notify()

    def _loop(self) -> None:
        given_back = time.monotonic()
        while True:
            with self.lock:
                while self._steps or not self._handles:
                    if self._closing and not self._handles:
                        return
                    self._work.wait()
                self._steps = True
            self._step(None)
            if time.monotonic() - given_back > _GIVE_BACK_EVERY:
                give_back_freed_memory()
                given_back = time.monotonic()
