"""How a model writes calls of tools: the form of its family, and a grammar for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ovspec.errors import InvalidValueError
from ovspec.generation.grammars.grammar import Grammar
from ovspec.serve.requests.api_error import ApiError
from ovspec.serve.requests.bodies import ChatBody
from ovspec.serve.requests.tool_fields import NamedTool, Tool

_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class ToolForm:
    """The form in which a family of models writes calls.

    Attributes:
        trigger: text that a call begins with in the middle of an answer; empty: an answer is calls or text.
        begin, end: text before and behind all calls.
        call_begin, call_end: text before and behind the arguments of each, with NAME for that of the tool.
        content: the type of structural tag that the arguments are.
        separator: between calls.
    """

    trigger: str = ""
    begin: str = ""
    end: str = ""
    call_begin: str = '{"name": "NAME", "arguments": '
    call_end: str = "}"
    content: str = "json_schema"
    separator: str = ", "

    def tag(self, tools: Sequence[Tool], parallel: bool, free: bool) -> dict[str, Any]:
        """Calls of these tools as a structural tag.

        Args:
            parallel: whether there may be several.
            free: whether the answer may be text instead, of any form.
        """
        calls = {
            "type": "tags_with_separator",
            "tags": [self._call(tool) for tool in tools],
            "separator": self.separator,
            "at_least_one": True,
            "stop_after_first": not parallel,
        }
        if free and self.trigger:
            triggered = {
                "type": "triggered_tags",
                "triggers": [self.trigger],
                "stop_after_first": not parallel,
            }
            return {**triggered, "tags": calls["tags"]}
        parts = [{"type": "const_string", "value": text} for text in (self.begin, self.end)]
        whole = {"type": "sequence", "elements": [parts[0], calls, parts[1]]}
        text = {"type": "regex", "pattern": "(?s:[^\\[{].*)"}
        return {"type": "or", "elements": [whole, text]} if free else whole

    def _call(self, tool: Tool) -> dict[str, Any]:
        function = tool.function
        return {
            "begin": self.call_begin.replace("NAME", function.name),
            "content": {"type": self.content, "json_schema": function.parameters or _NO_ARGUMENTS},
            "end": self.call_end,
        }


HERMES = ToolForm(
    "<tool_call>",
    call_begin='<tool_call>\n{"name": "NAME", "arguments": ',
    call_end="}\n</tool_call>",
    separator="\n",
)
QWEN_CODER = ToolForm(
    "<tool_call>",
    call_begin="<tool_call>\n<function=NAME>\n",
    call_end="</function>\n</tool_call>",
    content="qwen_xml_parameter",
    separator="\n",
)
LLAMA = ToolForm(call_begin='{"name": "NAME", "parameters": ', separator="; ")
# Their markers are special tokens, which are no text.
LIST = ToolForm(begin="[", end="]")
# What the template engine asks for where a template knows no tools.
GENERIC = ToolForm(begin='{"tool_calls": [', end="]}")


def form_of(template: str) -> ToolForm:
    """The form of the family that a chat template belongs to."""
    if "<function=" in template and "<parameter=" in template:
        return QWEN_CODER
    if "<tool_call>" in template:
        return HERMES
    if any(mark in template for mark in ("[TOOL_CALLS]", "<|tool_call|>", "functools")):
        return LIST
    if "<|python_tag|>" in template or ("ipython" in template and "parameters" in template):
        return LLAMA
    return GENERIC


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a chat, and what is to be done with them.

    Attributes:
        tools: that are declared; none where none may be called.
        grammar: of answers; `None`: they are free.
        is_free: whether an answer may be any text.
    """

    tools: tuple[Tool, ...] = ()
    grammar: Grammar | None = None
    is_free: bool = True

    @property
    def schemas(self) -> dict[str, dict[str, Any]]:
        """Of the tools' arguments, by their names."""
        return {tool.function.name: tool.function.parameters or {} for tool in self.tools}

    @classmethod
    def of(cls, body: ChatBody, template: str, answer: Grammar | None) -> ToolUse:
        """What a body asks for.

        Args:
            template: of the model's chats.
            answer: that the body asks for, of an answer that is no call; `None`: any.

        Raises:
            ApiError: 400, a tool that is not declared, a choice without tools, or a schema that is none.
        """
        tools, choice = tuple(body.tools or ()), body.tool_choice
        names = [tool.function.name for tool in tools]
        if len(set(names)) < len(names):
            raise ApiError(400, "tools: two functions have one name; rename one", "tools", "invalid_value")
        if not tools and choice not in (None, "none", "auto"):
            raise ApiError(400, "tool_choice: there are no tools; give tools, or leave it out", "tool_choice")
        if not tools or choice == "none":
            return cls((), answer, answer is None)
        if not body.restricts_calls and answer is None:
            return cls(tools)
        if isinstance(choice, NamedTool) and choice.function.name not in names:
            message = f"tool_choice: function {choice.function.name!r} is not declared in tools"
            raise ApiError(400, message, "tool_choice", "invalid_value")
        asked = [
            tool
            for tool in tools
            if not isinstance(choice, NamedTool) or tool.function.name == choice.function.name
        ]
        parallel = body.parallel_tool_calls is not False and not isinstance(choice, NamedTool)
        left_open = choice in (None, "auto")
        is_free = left_open and answer is None
        try:
            calls = Grammar.of_tag(form_of(template).tag(asked, parallel, is_free), "tools")
        except InvalidValueError as error:
            raise ApiError(400, str(error), "tools", "invalid_value") from error
        grammar = replace(answer, other=calls) if answer is not None and left_open else calls
        return cls(tools, grammar, is_free)
