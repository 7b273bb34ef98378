"""The engine: requests come and go at any step, and every pass advances all that run."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import ExitStack

from openvino_genai import GenerationFinishReason

from ovspec.drafters.drafter import Drafter
from ovspec.engine.passes import Passes
from ovspec.engine.planning import Planner
from ovspec.engine.requests.beams import Beams
from ovspec.engine.requests.meter import Meter
from ovspec.engine.requests.request import Request, RequestOutput
from ovspec.engine.requests.request_mode import RequestMode
from ovspec.engine.requests.request_state import RequestState
from ovspec.engine.routing import check_mode
from ovspec.engine.scheduler import CacheFullError, Scheduler
from ovspec.engine.verify.speculation import Speculation
from ovspec.errors import InvalidValueError, NoRoomError, refuses_as_genai
from ovspec.generation.generation_config import GenerationSettings
from ovspec.generation.grammars.grammars import Grammars
from ovspec.generation.sequence import Sequence
from ovspec.memory.memory_plan import DRAFT_PREFIX_SHARE, PREFIX_CACHE_BYTES
from ovspec.modes.commit_verify import CommitVerify
from ovspec.modes.verify_mode import VerifyMode, calibrated_mode
from ovspec.passes.prompt_pieces import DEFAULT_MAX_NUM_BATCHED_TOKENS
from ovspec.runner.model_runner import ModelRunner
from ovspec.runner.warm_up import warm_up
from ovspec.sampling.constraint import Constraint
from ovspec_models import OvspecConfig

_LOG = logging.getLogger(__name__)
_UNLIMITED = 2**31 - 1
MAX_NUM_SEQS = 256


class LLMEngine:
    """Answers requests with a target model and, if given, a drafter.

    One thread at a time may use it; `EngineThread` lends it to several.

    Args:
        target: the model whose output is generated.
        drafter: proposes tokens; without one every step is plain decoding.
        verify: how requests are verified that do not say.
        max_num_batched_tokens: rows of a pass, as of `Scheduler`; commits have 128 more at most.
        max_num_seqs: requests that run at a time; others wait.
        max_model_len: positions of the model.
        config: calibrated values of the model, which complete a mode.
        cache_bytes: limit of the target's keys and values; `None`: as memory allows.
        prefix_cache_bytes: what ended requests leave in the target's cache before it grows, for prompts that
            begin alike; 0: prompts share nothing.
        grammars: makes the constraints of requests with a grammar; `None`: there are none.
        splits_prompts: whether several passes may read a prompt; else a longer one than a pass is refused.
    """

    def __init__(
        self,
        target: ModelRunner,
        drafter: Drafter | None,
        verify: VerifyMode = "dense",
        max_num_batched_tokens: int = DEFAULT_MAX_NUM_BATCHED_TOKENS,
        max_num_seqs: int = MAX_NUM_SEQS,
        max_model_len: int = _UNLIMITED,
        config: OvspecConfig | None = None,
        cache_bytes: int | None = None,
        prefix_cache_bytes: int = PREFIX_CACHE_BYTES,
        grammars: Grammars | None = None,
        splits_prompts: bool = True,
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.max_model_len = max_model_len
        self._config, self._grammars = config, grammars
        target.limit_cache(cache_bytes, prefix_cache_bytes)
        if drafter:
            drafter.limit_cache(prefix_cache_bytes // DRAFT_PREFIX_SHARE)
        piece = target.attention.prompt_piece if splits_prompts else max_num_batched_tokens
        self._longest_prompt = max_model_len if splits_prompts else max_num_batched_tokens
        self._scheduler = Scheduler(target.blocks, max_num_batched_tokens, max_num_seqs, piece)
        self._speculation = Speculation(target, drafter)
        self._planner = Planner(drafter, self._speculation)
        self._passes = Passes(self._scheduler, self._speculation, self._planner)
        self._modes: dict[VerifyMode, RequestMode] = {}
        self._states: dict[str, RequestState] = {}
        self._outputs: list[RequestOutput] = []  # of a step that was cut short as well
        self.verify = verify

    def warm_up(self) -> None:
        """Compute the largest passes that requests can ask for, so that memory has its size before them."""
        rows = int(min(self._scheduler.max_num_batched_tokens, self.target.blocks.max_tokens))
        warm_up(self.target, rows)
        if self.drafter:
            self.drafter.warm_up(rows)

    @refuses_as_genai
    def check(self, request: Request) -> int:
        """The most tokens that the answer may have; any thread may ask.

        With its prompt it may fill the model's positions or the cache; there it ends as at `max_new_tokens`.

        Raises:
            ValueError: a prompt that can't be answered within the model's positions or the cache, a mode that
                the target can't run or that contradicts the acceptance rule, trees that nobody can draft or
                verify, or adapters that do not fit the target.
        """
        if request.verify is not None:
            check_mode(self.target, calibrated_mode(request.verify, self._config))
        if request.settings.acceptance_rule == "block" and isinstance(
            request.verify or self.verify, CommitVerify
        ):
            raise InvalidValueError(
                "acceptance_rule='block' contradicts verify='commit', which confirms tokens by drawing them "
                "again: leave one of them out"
            )
        self._speculation.check_trees(request.settings.tree_depth)
        if request.settings.adapters is not None:
            self.target.adapters.check(request.settings.adapters.adapters)
        if request.visual is not None and self.target.visual is None:
            raise InvalidValueError("visual: this is a text model, which reads no pictures; give text alone")
        length, room = len(request.prompt_token_ids), self.target.blocks.max_tokens
        beams = request.settings.beams
        if beams is not None:
            if beams.num_beams > (most := self._scheduler.max_num_batched_tokens):
                raise InvalidValueError(
                    f"num_beams={beams.num_beams}: a pass has {most} rows, one for each beam; ask for fewer"
                )
            room = self.target.blocks.room_of_beams(length, beams.num_beams)
        if length >= room:
            raise NoRoomError(
                f"the prompt has {length} tokens, the KV cache room for {room:.0f} with "
                f"{f'{beams.num_beams} beams' if beams else 'an answer'}: "
                "cache_size (of a server: --cache-size) allows no more; shorten the prompt, or raise it"
            )
        if length >= self.max_model_len:
            raise InvalidValueError(
                f"the prompt has {length} tokens, the model {self.max_model_len} positions; shorten it"
            )
        if length > self._longest_prompt:
            raise InvalidValueError(
                f"the prompt has {length} tokens, a pass {self._longest_prompt}, and with "
                "dynamic_split_fuse=False one pass reads it whole: raise max_num_batched_tokens, or leave "
                "dynamic_split_fuse at True"
            )
        # What is no more than the cache is never given up: others are preempted for it.
        limit = request.settings.token_limit(length, int(min(self.max_model_len, room)))
        if request.answered and len(request.answered) >= limit:
            raise InvalidValueError(
                f"answered: {len(request.answered)} tokens, but the answer may have {limit} at most, so none "
                "is left to generate; give fewer, or raise max_new_tokens"
            )
        return limit

    def add_request(self, request: Request) -> None:
        """Let a request wait for its turn.

        Raises:
            ValueError: an id that runs already, or as `check`.
        """
        if request.request_id in self._states:
            raise InvalidValueError(f"request_id={request.request_id!r} runs already; give another")
        settings, limit = request.settings, self.check(request)
        mode = self._mode(self.verify if request.verify is None else request.verify)
        constraint = self._constraint(settings)
        sequence = Sequence.start(
            request.prompt_token_ids, limit, settings, request.index, request.answered, constraint
        )
        if request.cached is not None:
            sequence.target, sequence.draft = request.cached
        sequence.target.adapters = self.target.adapters.load(settings.adapters)
        sequence.target.visual = request.visual
        schedule = request.schedule or mode.schedules.of(settings)
        raw = request.metrics
        of_call = (state.meter for state in self._states.values() if state.meter.raw is raw)
        meter = next(of_call, None) or Meter(raw)
        self._states[request.request_id] = state = RequestState(
            request,
            sequence,
            mode,
            schedule,
            meter,
            RequestOutput(request.request_id),
            self.target.attention.prefill,
            Beams(settings.beams, request, sequence, self.target.blocks) if settings.beams else None,
        )
        self._scheduler.waiting.append(state)

    def _constraint(self, settings: GenerationSettings) -> Constraint | None:
        if settings.grammar is None:
            return None
        if self._grammars is None:
            raise InvalidValueError(
                f"{settings.grammar.field}: this engine has no tokenizer to follow it with"
            )
        return self._grammars.constraint(settings.grammar)

    def abort(self, request_id: str) -> None:
        """End a request before the next step; one that has ended already is no error."""
        if (state := self._states.get(request_id)) is not None:
            state.aborted = True

    def step(self) -> list[RequestOutput]:
        """Schedule, run one pass, post-process; what came of it for each request that has something new."""
        outputs = self._outputs
        outputs += self.end_aborted()
        for state in [state for state in self._states.values() if state.ended]:
            outputs.append(self._last_output(state))  # a step was cut short after its last token
        for state in self._scheduler.admit():
            with state.faults():
                self._begin(state)
            if state.error:
                outputs.append(self._last_output(state))
        try:
            decoding, reading = self._advance()
        except CacheFullError as error:
            self._outputs, state = [], self._states[error.request_id]
            # What passes before have brought is handed out; the next step fails again.
            return [*outputs, state.take_output() if state.output.token_ids else self._fail(state)]
        for state in (*decoding, *reading):
            if state.ended:
                outputs.append(self._last_output(state))
            elif state.output.token_ids or (state.request.reports_reading and state.unread):
                outputs.append(state.take_output())
        self._outputs = []
        return outputs

    def end_aborted(self) -> list[RequestOutput]:
        """End what was aborted; the last outputs of these requests."""
        outputs = []
        for state in [state for state in self._states.values() if state.aborted]:
            state.sequence.finish_reason = GenerationFinishReason.STOP
            outputs.append(self._last_output(state))
        return outputs

    def generate(self, requests: Iterable[Request]) -> dict[str, list[int]]:
        """Answer requests together, and nothing else; the tokens of each by its id.

        Raises:
            Exception: what one of them failed with; all have ended then.
        """
        answers: dict[str, list[int]] = {}
        for request in requests:
            self.add_request(request)
            answers[request.request_id] = []
        while self.has_unfinished_requests:
            for output in self.step():
                if output.error is not None:
                    self.drop_all(output.error)
                    raise output.error
                answers[output.request_id] += output.token_ids
        return answers

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether a step has something to do."""
        return bool(self._states)

    @property
    def max_num_seqs(self) -> int:
        """Requests that run at a time; it may be set anew at any time."""
        return self._scheduler.max_num_seqs

    @max_num_seqs.setter
    def max_num_seqs(self, number: int) -> None:
        self._scheduler.max_num_seqs = number

    @property
    def num_requests_running(self) -> int:
        """Requests that passes advance."""
        return len(self._scheduler.running)

    @property
    def num_requests_waiting(self) -> int:
        """Requests that wait for their turn."""
        return len(self._scheduler.waiting)

    @property
    def kv_cache_usage(self) -> float:
        """Share of the cache's blocks that running requests hold."""
        return self.target.blocks.usage

    def drop_all(self, error: Exception) -> list[RequestOutput]:
        """End every request with an error, after a step that failed itself; their last outputs."""
        self.recover()
        outputs, self._outputs = self._outputs, []
        for state in list(self._states.values()):
            state.error = error
            outputs.append(self._last_output(state))
        return outputs

    def recover(self) -> None:
        """After a step that was cut short: go on from the tokens that every request has."""
        for state in self._states.values():
            state.go_on()

    @property
    def num_preemptions(self) -> int:
        """Times that a request gave its blocks to an older one, to be read again."""
        return self._scheduler.num_preemptions

    def _begin(self, state: RequestState) -> None:
        """A request is about to run, for the first time or after a preemption."""
        sequence = state.sequence
        if state.request.cached is None:
            # Behind a sparse prompt the answer's blocks are not those of a prompt.
            known = sequence.tokens[: sequence.prompt_length + 1] if state.prefill else sequence.tokens
            if not state.wants_prompt_logprobs:
                self.target.share(sequence.target, known)
            if self.drafter and state.beams is None:
                self.drafter.begin(sequence)
            if not state.prompt_reads[1]:  # else it finds its own blocks again after a preemption
                state.num_cached_tokens = sequence.target.length
                state.meter.raw.sparse_cached_tokens += state.sparse_cached

    def _publish(self, state: RequestState) -> None:
        """Share what later prompts may begin with: keys and values of dense passes over final tokens."""
        sequence = state.sequence
        final = sequence.confirmed - 1
        if state.prefill or (state.mode.sparse is not None and not state.mode.commits):
            final = min(final, sequence.prompt_length)
        if state.request.cached is None and self.target.blocks.publishes(sequence.target, final):
            self.target.publish(sequence.target, sequence.tokens[:final])

    def _fail(self, state: RequestState) -> RequestOutput:
        """End a request that does not fit in the cache, where it has all of it: no other one is at fault."""
        state.error = InvalidValueError(
            f"the KV cache is full after {len(state.sequence.tokens)} tokens of one request: cache_size "
            f"allows {self.target.blocks.max_tokens:.0f}; raise it, or shorten the prompt or the answer"
        )
        return self._last_output(state)

    def _mode(self, verify: VerifyMode) -> RequestMode:
        if verify not in self._modes:
            self._modes[verify] = RequestMode.of(verify, self._config)
        return self._modes[verify]

    def _advance(self) -> tuple[list[RequestState], list[RequestState]]:
        """Schedule and run a pass; the requests that decoded in it, and those whose prompts it read."""
        decoding, chunks = self._scheduler.schedule()
        if decoding or chunks:
            self._passes.run(decoding, chunks)
        reading = [chunk.state for chunk in chunks]
        for state in (*decoding, *reading):
            if not state.error:
                with state.faults():
                    self._publish(state)
        return decoding, reading

    def _last_output(self, state: RequestState) -> RequestOutput:
        """End a request; taken before, so that Ctrl-C loses no output of a request that has ended."""
        output = state.take_output()
        try:
            self._free(state)
        except Exception:
            _LOG.exception("ovspec: an error while request %r was freed", output.request_id)
        self._forget(state)
        return output

    def _free(self, state: RequestState) -> None:
        """Its caches are as its final tokens, and free unless they are the caller's, whatever fails."""
        sequence, request = state.sequence, state.request
        with ExitStack() as steps:  # the last one first
            if request.cached is None:
                if self.drafter and state.beams is None:
                    steps.callback(self.drafter.release, sequence)
                steps.callback(self.target.release, sequence.target)
            steps.callback(sequence.trim_caches)
            steps.callback(sequence.take_back)
            if state.beams is not None:
                steps.callback(state.beams.begin_again)

    def _forget(self, state: RequestState) -> None:
        self._scheduler.remove(state)
        del self._states[state.request.request_id]
