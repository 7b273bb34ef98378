"""Reading OpenVINO's exceptions."""

from __future__ import annotations


def last_line(error: Exception) -> str:
    """The line of an OpenVINO exception that says what happened; those above it are its C++ trace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
