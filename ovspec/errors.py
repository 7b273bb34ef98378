"""Errors of a pipeline, which code that was written for openvino_genai catches as well."""


class InvalidValueError(ValueError, RuntimeError):
    """A value that can't be served. A RuntimeError too: that is what openvino_genai raises in its place."""


class InvalidTypeError(InvalidValueError, TypeError):
    """An argument of a type that is not taken; openvino_genai raises a TypeError."""


class PipelineBusyError(RuntimeError):
    """A call to a pipeline that runs another call; openvino_genai raises a RuntimeError as well."""
