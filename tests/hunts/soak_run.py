"""Runs a list of requests: step by step in one thread, or by clients with a thread each."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from typing import Any

from hunts.caches import runners
from hunts.soak_faults import failing_pass, options_with, poisoned, raise_in_callback
from hunts.soak_models import ROOMY, VERIFY, VOCAB, Answer, pipeline
from hunts.soak_requests import Asked, Load
from openvino_genai import StreamingStatus

from ovspec.engine.engine_thread import EngineThread, RequestHandle
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.requests.request import Request, RequestOutput
from ovspec.generation.inputs import encode
from ovspec.memory.memory_plan import PREFIX_CACHE_BYTES

_CLIENTS = 6
# Of the draft models' prefix caches.
_DRAFT_PREFIX_BYTES = 4 * 2**20


class Outcome(Answer):
    """What came of a request: its answer, or why there is none.

    Attributes:
        refused: whether it was not taken; `error` says why.
        text: of a call of `generate`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.refused = self.aborted = False
        self.text: str | None = None


class Run:
    """One run of a list of requests.

    Attributes:
        outcomes: of each request.
        counts: of what happened.
        ticks: rises while something goes on.
        held_before: blocks of each model that are held before it; what a run leaves is told once.
    """

    def __init__(self, load: Load) -> None:
        self.load, self.made = load, pipeline(load.model)
        self.held_before = [runner.blocks.num_held for runner in runners(self.made.engine.engine)]
        self.outcomes = [Outcome() for _ in load.requests]
        self.counts: Counter[str] = Counter()
        self.ticks = 0

    def run(self) -> None:
        """Answer the requests; afterwards nothing runs."""
        load, engine = self.load, self.made.engine.engine
        if not load.threads:
            parts = (engine.target, engine.drafter, engine.verify)
            engine = LLMEngine(*parts, load.rows, load.seqs, self.made.max_model_len)
        self._limit(engine)
        before = engine.num_preemptions
        with failing_pass(engine.target, load.fault_at):
            if load.threads:
                self._with_threads(self.made.engine)
            else:
                self._step_by_step(EngineThread(engine))
        self.counts["preemptions"] += engine.num_preemptions - before

    def _limit(self, engine: LLMEngine) -> None:
        target, prefix = engine.target, PREFIX_CACHE_BYTES if self.load.prefix else 0
        room = (self.load.cache_tokens or ROOMY) // target.block_size * target.cache.block_bytes
        target.limit_cache(room, min(prefix, room))
        if engine.drafter:
            engine.drafter.limit_cache(_DRAFT_PREFIX_BYTES if prefix else 0)
        engine.max_num_seqs = self.load.seqs

    def _step_by_step(self, owner: EngineThread) -> None:
        waiting, running = list(enumerate(self.load.requests)), dict[int, RequestHandle]()
        began: dict[int, int] = {}
        while waiting or running:
            while waiting and (not running or waiting[0][1].arrives <= self.ticks):
                number, asked = waiting.pop(0)
                if (handle := self._submit(owner, number, asked)) is not None:
                    running[number], began[number] = handle, self.ticks
            for number, handle in running.items():
                leaves = self.load.requests[number].leaves
                if leaves is not None and self.ticks - began[number] >= leaves:
                    self.outcomes[number].aborted = True
                    handle.abort()
            # The oldest one always runs; then the others may have something as well.
            for place, (number, handle) in enumerate(running.items()):
                while place == 0 or handle.outputs:
                    self._take(number, owner.next_output(handle))
                    if not handle.outputs:
                        break
            running = {number: handle for number, handle in running.items() if handle.open_ids}

    def _with_threads(self, owner: EngineThread) -> None:
        todo: queue.SimpleQueue[tuple[int, Asked]] = queue.SimpleQueue()
        for entry in enumerate(self.load.requests):
            todo.put(entry)

        def client() -> None:
            while True:
                try:
                    number, asked = todo.get_nowait()
                except queue.Empty:
                    return
                if self.is_call(asked):
                    self._call(number, asked)
                elif (handle := self._submit(owner, number, asked)) is not None:
                    self._follow(number, asked, handle)

        owner.start()
        clients = [threading.Thread(target=client, name="soak client") for _ in range(_CLIENTS)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()
        while not owner.is_idle:  # nobody waits for requests whose callback raises
            time.sleep(0.001)

    def is_call(self, asked: Asked) -> bool:
        """Whether a request is a call of `generate`, which looks for stop strings."""
        threads, calls = self.load.threads, "stop_strings" in asked.ask.options
        return threads and calls and not asked.fault and self.made.verify != VERIFY["sparse"]

    def _submit(self, owner: EngineThread, number: int, asked: Asked) -> RequestHandle | None:
        """Give a request to the engine; `None` if it was refused, or if nobody is to wait for it."""
        outcome, ask = self.outcomes[number], asked.ask
        forgotten = asked.fault == "callback" and self.load.threads
        try:
            options = options_with(asked.fault, {**ask.options, **asked.drafts}, VOCAB)
            settings = self.made.settings(None, **options)
            if asked.fault in ("raises", "nan"):
                settings = poisoned(settings, asked.fault, 2 + number % 7)
            ids = encode(self.made.get_tokenizer(), ask.prompt)
            name, verify = f"soak-{number}", VERIFY[asked.verify]
            request = Request(name, ids, settings, verify, ask.logprobs, index=ask.index)
            handle = owner.run([request], raise_in_callback if forgotten else None)
        except Exception as error:
            outcome.refused, outcome.error = True, error
            return None
        return None if forgotten else handle

    def _take(self, number: int, output: RequestOutput | None) -> None:
        self.ticks += 1
        if output is not None:
            self.outcomes[number].add(output)

    def _follow(self, number: int, asked: Asked, handle: RequestHandle) -> None:
        outcome, seen = self.outcomes[number], 0
        try:
            if asked.leaves == 0:
                outcome.aborted = True
                handle.abort()
            for output in handle:
                seen += 1
                self._take(number, output)
                if seen == asked.leaves:
                    outcome.aborted = True
                    handle.abort()
        except Exception as error:
            outcome.error = error

    def _call(self, number: int, asked: Asked) -> None:
        outcome, seen = self.outcomes[number], 0

        def streamer(text: str) -> StreamingStatus:
            nonlocal seen
            seen += 1
            self.ticks += 1
            outcome.aborted = asked.leaves is not None and seen > asked.leaves
            return StreamingStatus.CANCEL if outcome.aborted else StreamingStatus.RUNNING

        options: dict[str, Any] = {**asked.ask.options, **asked.drafts}
        try:
            outcome.text = self.made.generate(asked.ask.prompt, None, streamer, **options)
        except Exception as error:
            outcome.error = error
