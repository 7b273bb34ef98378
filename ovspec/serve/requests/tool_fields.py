"""Fields of bodies that declare tools, and choose among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from ovspec.serve.requests.argument_schema import ArgumentSchema
from ovspec.serve.requests.strict_body import Flag, StrictBody, Text

MAX_TOOLS = 128
ToolName = Annotated[Text, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class Function(StrictBody):
    """A function that a model may ask to call.

    Attributes:
        parameters: JSON schema of its arguments; without it, it has none.
        strict: whether arguments always satisfy the schema.
    """

    name: ToolName
    description: Text | None = None
    parameters: ArgumentSchema | None = None
    strict: Flag | None = None


class Tool(StrictBody):
    """A tool; there are no others than functions."""

    type: Literal["function"] = "function"
    function: Function


class FunctionName(StrictBody):
    """A function by its name."""

    name: ToolName


class NamedTool(StrictBody):
    """The tool that is to be called."""

    type: Literal["function"] = "function"
    function: FunctionName


def restricts_calls(functions: Sequence[Function], parallel: bool | None, choice: object) -> bool:
    """Whether not all is left to the model: that it calls a function, how many, or with which arguments."""
    if not functions or choice == "none":
        return False
    is_strict = any(function.strict for function in functions)
    return is_strict or parallel is False or choice not in (None, "auto")
