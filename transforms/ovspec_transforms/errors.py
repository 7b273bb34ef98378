"""Reading OpenVINO's exceptions."""

from __future__ import annotations


def last_line(error: Exception) -> str:
    """The last line of an OpenVINO exception, its message; the lines before it are a C++ trace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
