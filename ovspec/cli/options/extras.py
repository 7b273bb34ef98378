"""Optional dependencies."""

from __future__ import annotations

from importlib.util import find_spec


def need_extra(extra: str, *modules: str) -> None:
    """Refuse a command whose extra is not installed.

    Raises:
        ValueError: one of its modules is missing.
    """
    for module in modules:
        if find_spec(module) is None:
            raise ValueError(f"this command needs {module}: install it with `pip install 'ovspec[{extra}]'`")
