"""Errors of a pipeline, which code that was written for openvino_genai catches as well."""

from __future__ import annotations

import dis
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
PACKAGES = ("ovspec", "ovspec_models", "ovspec_transforms", "ovspec_ops")


class InvalidValueError(ValueError, RuntimeError):
    """A value that can't be served. A RuntimeError too: that is what openvino_genai raises in its place."""


class InvalidTypeError(InvalidValueError, TypeError):
    """An argument of a type that is not taken; openvino_genai raises a TypeError."""


class NoRoomError(InvalidValueError):
    """A prompt that the cache has no room for, with a token of an answer."""


class EngineClosedError(RuntimeError):
    """The engine takes no more requests, or its server ends."""


class PipelineBusyError(RuntimeError):
    """A call to a pipeline that runs another call; openvino_genai raises a RuntimeError as well."""


def fault_of(error: BaseException) -> Exception:
    """What went wrong in a piece of work; a panic of a library in Rust, which is no `Exception`, is that too.

    Raises:
        BaseException: the error, where it asks this thread to end.
    """
    if isinstance(error, Exception):
        return error
    if type(error).__name__ != "PanicException":
        raise error
    return RuntimeError(f"a library failed: {error}")


def raised_by_us(error: BaseException) -> bool:
    """Whether a `raise` statement of our packages made this error, not NumPy, OpenVINO or Python itself."""
    trace = error.__traceback__
    if trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    package = trace.tb_frame.f_globals.get("__name__", "").partition(".")[0]
    operation = dis.opname[trace.tb_frame.f_code.co_code[trace.tb_lasti]]
    return package in PACKAGES and operation == "RAISE_VARARGS"


def refuses_as_genai(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Make the ValueErrors that our code raises in `function` RuntimeErrors too, as openvino_genai's are."""

    @functools.wraps(function)
    def refusing(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        try:
            return function(*arguments, **named)
        except ValueError as error:
            if isinstance(error, RuntimeError) or not raised_by_us(error):
                raise
            raise InvalidValueError(str(error)) from error

    return refusing
