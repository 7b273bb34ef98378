"""`ovspec chat`: several turns with a model, at a terminal or through a pipe."""

from __future__ import annotations

import sys
from typing import Any

import click
from openvino_genai import ChatHistory

from ovspec.cli.generate import print_piece, summary_line
from ovspec.cli.help import ShortHelpCommand
from ovspec.cli.option_forms import default_option
from ovspec.cli.pipeline_options import (
    answer_options,
    generation_options,
    pipeline_from,
    pipeline_options,
    prefix_option,
)
from ovspec.errors import InvalidValueError
from ovspec.pipeline.pipeline import LLMPipeline

COMMON = (
    *("model", "system", "at_context_end", "max_new_tokens", "do_sample", "temperature"),
    *("draft_model", "properties", "figures"),
)
_HELP = "Enter ends a message; /reset forgets the chat, /exit or Ctrl-D ends it."


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
@pipeline_options
@answer_options
def chat(system: str | None, at_context_end: str, figures: bool, **options: Any) -> None:
    """Chat with a model: every line is a message; what was said is remembered."""
    pipeline, _ = pipeline_from(options)
    settings = generation_options(options)
    if not pipeline.get_tokenizer().chat_template:
        raise ValueError("this model has no chat template, and can't chat; use `ovspec generate`")
    turns = Turns(pipeline, system, settings, drops=at_context_end == "drop")
    interactive = sys.stdin.isatty()
    if interactive:
        click.echo(_HELP, err=True)
    while (message := _next_message(interactive)) is not None:
        if message == "/reset":
            turns.reset()
        elif message:
            metrics = turns.answer(message)
            if figures:
                click.echo(summary_line(metrics), err=True)


def _next_message(interactive: bool) -> str | None:
    """The next line, `None` at the end of the chat."""
    if interactive:
        click.echo("> ", nl=False, err=True)
    try:
        line = sys.stdin.buffer.readline().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"a message is not UTF-8 ({error}); convert the input") from error
    return None if not line or line.strip() == "/exit" else line.strip()


class Turns:
    """The messages of a chat, and what is forgotten of them.

    `drops`: forget the oldest turns where the model's positions end, instead of ending the chat.
    """

    def __init__(
        self, pipeline: LLMPipeline, system: str | None, settings: dict[str, Any], drops: bool
    ) -> None:
        self._pipeline, self._settings, self._drops = pipeline, settings, drops
        self._system = [] if system is None else [{"role": "system", "content": system}]
        self._turns: list[dict[str, str]] = []
        # The pipeline keeps the keys and values of a chat from turn to turn.
        pipeline.start_chat()

    def reset(self) -> None:
        """Forget what was said."""
        self._turns = []

    def answer(self, message: str) -> Any:
        """Stream the answer to a message; returns its metrics."""
        self._turns.append({"role": "user", "content": message})
        while not self._fits(self._settings["max_new_tokens"]) and len(self._turns) > 1:
            self._forget()
        if not self._fits(1):
            raise InvalidValueError("this message is longer than the model's positions; shorten it")
        results = self._pipeline.generate(self._history(), streamer=print_piece, **self._settings)
        click.echo()
        self._turns.append({"role": "assistant", "content": str(results)})
        return results.perf_metrics

    def _history(self) -> ChatHistory:
        return ChatHistory([*self._system, *self._turns])

    def _fits(self, new_tokens: int) -> bool:
        return self._pipeline.fits(self._history(), new_tokens)

    def _forget(self) -> None:
        if not self._drops:
            raise InvalidValueError(
                "the chat has become longer than the model's positions, with --max-new-tokens "
                f"{self._settings['max_new_tokens']} for the answer; give fewer, or --at-context-end drop"
            )
        del self._turns[:2]
        click.echo("[the oldest turn is forgotten: the model's positions are used up]", err=True)
