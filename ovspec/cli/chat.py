"""`ovspec chat`: several turns with a model, at a terminal or through a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import click
from openvino_genai import ChatHistory, StreamingStatus

from ovspec.cli.generate import print_piece, summary_line, why_cut
from ovspec.cli.options.adapters import adapter_option, adapters_from
from ovspec.cli.options.forms import default_option
from ovspec.cli.options.help import ShortHelpCommand
from ovspec.cli.options.interrupts import ending_the_answer
from ovspec.cli.options.pipeline import (
    answer_options,
    generation_options,
    pipeline_from,
    pipeline_options,
    prefix_option,
)
from ovspec.cli.options.waiting import reading
from ovspec.errors import InvalidValueError
from ovspec.generation.results import DecodedResults
from ovspec.pipeline.generation_call import PromptProgress
from ovspec.pipeline.pipeline import LLMPipeline

COMMON = (
    *("model", "system", "at_context_end", "max_new_tokens", "do_sample", "temperature"),
    *("draft_model", "properties", "figures"),
)
_HELP = "Enter ends a message; Ctrl-C ends an answer; /reset forgets the chat, /exit or Ctrl-D ends it."
# Behind an answer that Ctrl-C ended, in what the model reads of the chat.
CUT = " [...]"


@click.command(cls=ShortHelpCommand, common=COMMON)
@click.option("--system", help="System message, which stays whatever is forgotten.")
@default_option(
    "--at-context-end",
    "drop",
    "When no positions are left for --max-new-tokens: forget the oldest turns, or end the chat. Both "
    "are said.",
    type=click.Choice(["drop", "stop"]),
)
@click.option("--figures", is_flag=True, help="Print a line of figures behind every answer.")
@prefix_option
@adapter_option
@pipeline_options
@answer_options
def chat(system: str | None, at_context_end: str, figures: bool, **options: Any) -> None:
    """Chat with a model: every line is a message; what was said is remembered.

    At a terminal Ctrl-C ends an answer, and what came of it is remembered; at the prompt it ends the chat.
    """
    options["adapters"] = adapters_from(options)
    pipeline, choice = pipeline_from(options)
    settings = generation_options(options)
    if not pipeline.get_tokenizer().chat_template:
        raise ValueError("this model has no chat template, and can't chat; use `ovspec generate`")
    turns = Turns(pipeline, system, settings, drops=at_context_end == "drop")
    interactive = sys.stdin.isatty()
    if interactive:
        click.echo(_HELP, err=True)
    while True:
        try:
            message = _next_message(interactive)
            results = turns.take(message, interactive) if message else None
        except _MessageError as error:
            if not interactive:
                raise
            click.echo(f"[{error}]", err=True)
            continue
        if message is None:
            return
        if results is None:
            continue
        if figures:
            click.echo(summary_line(results.perf_metrics, pipeline.verify), err=True)
        if why := why_cut(results, choice, pipeline.max_model_len, settings["max_new_tokens"]):
            click.echo(f"[{why}, or ask the model to go on]", err=True)


class _MessageError(InvalidValueError):
    """A message that can't be taken. At a terminal the chat goes on with the next one."""


def _next_message(interactive: bool) -> str | None:
    """The next line, `None` at the end of the chat."""
    if interactive:
        click.echo("> ", nl=False, err=True)
    try:
        line = sys.stdin.buffer.readline().decode("utf-8")
    except UnicodeDecodeError as error:
        raise _MessageError(f"a message is not UTF-8 ({error}); convert the input") from error
    return None if not line or line.strip() == "/exit" else line.strip()


class Turns:
    """The messages of a chat, and what is forgotten of them.

    Args:
        drops: forget the oldest turns where the model's positions end, instead of ending the chat.

    Attributes:
        messages: of user and model in turn.
    """

    def __init__(
        self, pipeline: LLMPipeline, system: str | None, settings: dict[str, Any], drops: bool
    ) -> None:
        self._pipeline, self._settings, self._drops = pipeline, settings, drops
        self._system = [] if system is None else [{"role": "system", "content": system}]
        self.messages: list[dict[str, str]] = []
        # The pipeline keeps the keys and values of a chat from turn to turn.
        pipeline.start_chat()

    def take(self, message: str, interactive: bool) -> DecodedResults | None:
        """Follow a line of the chat, as `answer`; `/reset` forgets what was said."""
        if message != "/reset":
            return self.answer(message, interactive)
        self.messages = []
        return None

    def answer(self, message: str, interactive: bool = False) -> DecodedResults | None:
        """Stream the answer to a message.

        Args:
            interactive: whether Ctrl-C ends the answer only. What came of it is remembered, marked as cut;
                where nothing came, the message is forgotten.

        Returns:
            What `generate` returns; `None` where Ctrl-C ended the answer before it began.

        Raises:
            _MessageError: the message is too long by itself; nothing is forgotten for it.
        """
        asked = {"role": "user", "content": message}
        if not self._pipeline.fits(ChatHistory([*self._system, asked]), 1):
            raise _MessageError(
                f"this message is longer than the {self._pipeline.max_model_len} positions that prompt and "
                "answer have together; shorten it"
            )
        self.messages.append(asked)
        while not self._fits(self._settings["max_new_tokens"]) and len(self.messages) > 1:
            self._forget()
        with ending_the_answer() if interactive else nullcontext(lambda: False) as pressed:
            stream = _Stream(pressed)
            try:
                with reading() as bar:
                    results = self._pipeline.generate(
                        self._history(),
                        streamer=stream.write,
                        prompt_progress=stream.watching(bar),
                        **self._settings,
                    )
            except _EndedError:
                self.messages.pop()
                click.echo("[ended before the answer began: the message is forgotten]", err=True)
                return None
        click.echo()
        self.messages.append({"role": "assistant", "content": str(results) + CUT * stream.cut})
        if stream.cut:
            click.echo("[ended; what came of the answer stays in the chat]", err=True)
        assert isinstance(results, DecodedResults)
        return results

    def _history(self) -> ChatHistory:
        return ChatHistory([*self._system, *self.messages])

    def _fits(self, new_tokens: int) -> bool:
        return self._pipeline.fits(self._history(), new_tokens)

    def _forget(self) -> None:
        if not self._drops:
            raise InvalidValueError(
                "the chat has become longer than the model's positions, with --max-new-tokens "
                f"{self._settings['max_new_tokens']} for the answer; give fewer, or --at-context-end drop"
            )
        del self.messages[:2]
        click.echo("[the oldest turn is forgotten: the model's positions are used up]", err=True)


class _EndedError(Exception):
    """Ctrl-C while the prompt was read."""


class _Stream:
    """Prints an answer as it comes, and ends it where `pressed` says so.

    Attributes:
        cut: whether it was ended.
    """

    def __init__(self, pressed: Callable[[], bool]) -> None:
        self._pressed = pressed
        self.cut = False

    def write(self, piece: str) -> StreamingStatus:
        """Streamer of the answer."""
        print_piece(piece)
        self.cut = self._pressed()
        return StreamingStatus.STOP if self.cut else StreamingStatus.RUNNING

    def watching(self, bar: PromptProgress | None) -> PromptProgress:
        """The progress of the prompt, on a bar if there is one."""

        def show(read: int, total: int) -> None:
            if self._pressed():
                raise _EndedError
            if bar is not None:
                bar(read, total)

        return show
