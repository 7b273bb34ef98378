"""OpenAI's error object."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


# Characters of a message: it may quote what a client sent.
_LONGEST = 1000


class ApiError(Exception):
    """What a client did wrong, or what the server can't do now.

    Args:
        status: HTTP status.
        message: names value, expectation and remedy; it is cut where a value is too long.
        param: the field that it is about.
        code: a word for programs, where there is one.
        retry_after: seconds after which the same request may be taken.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        # Half a character, which JSON can name, is no text that could be sent back.
        message = message.encode("utf-8", "backslashreplace").decode()
        if len(message) > _LONGEST:
            message = f"{message[: _LONGEST // 2]} ... {message[-_LONGEST // 2 :]}"
        super().__init__(message)
        self.status, self.message, self.param = status, message, param
        self.code, self.retry_after = code, retry_after

    def body(self) -> dict[str, object]:
        """The JSON object that clients of OpenAI read."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """The error as an answer."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.body(), self.status, headers)


def answer_with_error(request: Request, error: Exception) -> Response:
    """Starlette's handler of an `ApiError`."""
    assert isinstance(error, ApiError)
    return error.response()
