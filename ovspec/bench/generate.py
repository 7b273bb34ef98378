"""`ovspec bench generate`: one's own prompts, answered by processes that take turns."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ovspec.bench import generate_child
from ovspec.bench.generate_modes import Mode
from ovspec.bench.prompt_file import BenchPrompt, token_ids
from ovspec.bench.rounds import check_at_least, check_once, rotated
from ovspec.bench.source import ModelSource
from ovspec.generation.inputs import read_tokenizer
from ovspec.memory.machine_memory import available_bytes
from ovspec_models import ModelInfo

Tick = Callable[[str], None]
# Tokens behind the first whose speed in a fresh process is compared with that of a warm one.
FRESH_TOKENS = 64


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """One answer of a mode.

    Attributes:
        tokens: of the answer.
        first_s: from the call to the first token.
        decode_s: from there to the last one; 0 where the first is the last.
        passes: of the target behind the first token.
        proposed, accepted: draft tokens; 0 of OpenVINO GenAI, which does not count them.
    """

    tokens: list[int]
    prompt_tokens: int
    first_s: float
    decode_s: float
    passes: int
    proposed: int
    accepted: int

    @property
    def tokens_per_s(self) -> float:
        """Behind the first token; 0 where there is none."""
        return (len(self.tokens) - 1) / self.decode_s if self.decode_s else 0.0


@dataclass(slots=True)
class ModeRecord:
    """What a mode did.

    Attributes:
        fresh, steady: of the first prompt, the first answer of the process and one after it was warmed up.
        first_s: by prompt, of the first time that the process met it, as a cache may know it afterwards. The
            prompt that a fresh process began with is missing, unless it is the only one.
        answers: by prompt, those of all rounds.
    """

    fresh: AnswerRecord
    steady: AnswerRecord
    first_s: dict[int, float]
    answers: list[list[AnswerRecord]]


@dataclass(frozen=True, slots=True)
class GenerateBench:
    """What to measure.

    Attributes:
        max_new_tokens: most tokens of an answer, which may end before.
        repeat: timed answers to every prompt.
    """

    model: Path
    modes: tuple[Mode, ...]
    prompts: Sequence[BenchPrompt]
    max_new_tokens: int = 128
    repeat: int = 1

    def __post_init__(self) -> None:
        check_at_least(1, repeat=self.repeat)
        check_at_least(2, max_new_tokens=self.max_new_tokens)
        check_once("--mode", [mode.name for mode in self.modes])

    @property
    def num_steps(self) -> int:
        """How often `run` calls its `tick`."""
        return len(self.modes) * (3 + len(self._firsts()) + self.repeat * len(self.prompts))

    @property
    def interleaved(self) -> bool:
        """Whether the processes fit in memory together; each has a copy of the weights, and a cache."""
        weights = ModelSource.from_folder(self.model).weight_bytes
        return 2 * weights * len(self.modes) <= available_bytes()

    def run(self, tick: Tick = lambda step: None) -> GenerateResult:
        """Answer all prompts in every mode.

        The processes take turns, prompt by prompt. Where memory does not hold all of them, they run one after
        the other.

        Raises:
            ValueError: as `token_ids`, before any answer.
        """
        positions = ModelInfo.read(self.model).max_position_embeddings
        token_ids(read_tokenizer(self.model), self.prompts, positions)
        records, interleaved = dict[str, ModeRecord](), self.interleaved
        for group in [self.modes] if interleaved else [(mode,) for mode in self.modes]:
            with ExitStack() as stack:
                players = {}
                for mode in group:
                    tick(f"{mode.name}: loading the model")
                    players[mode.name] = player = stack.enter_context(_player(mode, self.model))
                    records[mode.name] = self._begin(mode, player, tick)
                self._take_turns(group, players, records, tick)
        return GenerateResult(self, interleaved, {mode.name: records[mode.name] for mode in self.modes})

    def _firsts(self) -> list[int]:
        """The first prompt of every category."""
        categories = [prompt.category for prompt in self.prompts]
        return [categories.index(category) for category in dict.fromkeys(categories)]

    def _begin(self, mode: Mode, player: _Player, tick: Tick) -> ModeRecord:
        """Take the speed of a fresh process, and warm it up with the first prompt of every category."""

        def ask(tokens: int, index: int, why: str) -> AnswerRecord:
            tick(f"{mode.name}: {why}")
            return player.ask(self.prompts[index], tokens)

        fresh = ask(1 + FRESH_TOKENS, 0, "the first answer")
        warm = {index: ask(self.max_new_tokens, index, "warming up") for index in self._firsts()}
        steady = ask(1 + FRESH_TOKENS, 0, "the first answer again")
        first_s = {index: answer.first_s for index, answer in warm.items() if index}
        if len(self.prompts) == 1:
            first_s = {0: fresh.first_s}
        return ModeRecord(fresh, steady, first_s, [[] for _ in self.prompts])

    def _take_turns(
        self,
        group: Sequence[Mode],
        players: Mapping[str, _Player],
        records: Mapping[str, ModeRecord],
        tick: Tick,
    ) -> None:
        prompts = list(enumerate(self.prompts))
        for number, (index, prompt) in enumerate(self.repeat * prompts):
            for mode in rotated(group, number):
                tick(f"{mode.name}: prompt {index + 1} of {len(prompts)}, round {number // len(prompts) + 1}")
                answer, record = players[mode.name].ask(prompt, self.max_new_tokens), records[mode.name]
                record.answers[index].append(answer)
                if index:
                    record.first_s.setdefault(index, answer.first_s)


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """What was measured.

    Attributes:
        interleaved: whether the processes took turns prompt by prompt. If not, a change of the machine's
            speed affects the ratios.
        records: by the name of the mode.
    """

    bench: GenerateBench
    interleaved: bool
    records: Mapping[str, ModeRecord]


@dataclass(frozen=True, slots=True)
class _Player:
    """A process that answers."""

    mode: Mode
    process: subprocess.Popen[str]
    errors: IO[str]

    def ask(self, prompt: BenchPrompt, max_new_tokens: int) -> AnswerRecord:
        """Its answer to a prompt."""
        return AnswerRecord(**self.say({"prompt": prompt.body, "max_new_tokens": max_new_tokens}))

    def say(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """What it answers to one line.

        Raises:
            RuntimeError: it failed; the message names the mode.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):  # it has ended; what it said last tells why
            self.process.stdin.write(json.dumps(body) + "\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        found: dict[str, Any] = json.loads(line) if line else {"error": self._last_words()}
        if "error" in found:
            raise RuntimeError(f"mode {self.mode.name} failed in a process of its own: {found['error']}")
        return found

    def _last_words(self) -> str:
        code = self.process.wait()
        self.errors.seek(0)
        return (self.errors.read().strip().splitlines() or [f"it ended with {code}"])[-1]


@contextmanager
def _player(mode: Mode, model: Path) -> Iterator[_Player]:
    """The process of a mode, with its model loaded; it ends with the context."""
    # By its text and not its path, so that the modules beside it hide none of the same names.
    command = [mode.python, "-c", Path(generate_child.__file__).read_text(encoding="utf-8")]
    pipe = subprocess.PIPE
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True)
        try:
            player = _Player(mode, process, errors)
            task = {"engine": mode.engine, "arguments": dict(mode.arguments), "config": dict(mode.config)}
            player.say({**task, "model": str(model)})
            yield player
        finally:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with suppress(BrokenPipeError):
                        stream.close()
