"""What an error that ends a command means, and what is printed about it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import metadata
from pathlib import Path

from ovspec.errors import PACKAGES, raised_by_us

USER_ERROR = 2
INTERNAL_ERROR = 70  # EX_SOFTWARE of sysexits.h
INTERRUPTED = 130
# In OpenVINO's messages.
_OUT_OF_MEMORY = "std::bad_alloc"
# Arguments whose options have another name.
_PARAMETERS = {"interval": "commit_interval", "rng_seed": "seed", "max_context": "context"}
# The field of a configuration that --json-schema and the like set, and its own fields.
_FORM, _FORMS = "structured_output_config", ("json_schema", "regex", "grammar")
_PRINTERS = ("click.", "rich.", "ovspec.cli.")
# `name=value` as messages about arguments of Python have it; not `name=Type(...)`, nor folders named like it.
_ARGUMENT = re.compile(r"(?<![\w./\\-])(\w+)=('[^']*'|[^\s,;:()'\"/\\]+)(?![(\w/\\])")


def is_refusal(error: BaseException) -> bool:
    """Whether an error says what the user can mend.

    That is an error of the system (no such file, no room, no memory), or a `ValueError` or `RuntimeError`
    that a `raise` statement of ours made: those messages name value, expectation and remedy. The same classes
    out of NumPy, OpenVINO or Python itself are faults of ours, but for a memory that is full.
    """
    if isinstance(error, (OSError, MemoryError)) or _OUT_OF_MEMORY in str(error):
        return True
    return isinstance(error, (ValueError, RuntimeError)) and raised_by_us(error)


def told(error: BaseException, flags: Mapping[str, str]) -> str:
    """What a refusal says, in the words of the command line.

    Args:
        flags: of the command's options by name of their parameter.
    """
    if isinstance(error, MemoryError) or _OUT_OF_MEMORY in str(error):
        about = "" if _OUT_OF_MEMORY in str(error) or not str(error) else f" ({error})"
        return f"the memory is full{about}: ask for less at once, or end other programs"
    message = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        message = _of_the_system(error)
    # Settings of sparse prompts have the names of those of sparse verification.
    part = "prefill_" if message.startswith("prefill: ") and flags else ""
    message = message.removeprefix("prefill: ") if part else message

    def flag(found: re.Match[str]) -> str:
        name, value = found.groups()
        option = flags.get(part + name) or flags.get(_PARAMETERS.get(name, name))
        if option is None:
            return found[0]
        # `name=...` is the option with any value; options that are switches have none.
        return option if value in ("None", "...", "True") else f"{option} {value.strip(chr(39))}".rstrip()

    forms = {name: flags[name] for name in _FORMS if name in flags}
    for name, option in forms.items():
        message = message.replace(f"{_FORM}.{name}", option)
    return _ARGUMENT.sub(flag, message.replace(_FORM, ", ".join(forms.values()) or _FORM))


def _of_the_system(error: OSError) -> str:
    """What the system refused, the file first. What is printed has no file, and fails in certain packages."""
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    trace, module = error.__traceback__, ""
    while trace is not None:
        module, trace = str(trace.tb_frame.f_globals.get("__name__", "")), trace.tb_next
    if module.startswith(_PRINTERS):
        return (
            f"standard output can't be written ({error.strerror}): make room where it goes, or send it "
            "elsewhere"
        )
    return str(error.strerror)


def internal_fault(error: BaseException, debug: bool) -> str:
    """Lines about a fault of ours: where it happened, and where to report it."""
    from ovspec_models.export.reasons import cause

    trace, place = error.__traceback__, "an unknown place"
    while trace is not None:
        package = trace.tb_frame.f_globals.get("__name__", "").partition(".")[0]
        if package in PACKAGES:
            place = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    how = "with this traceback" if debug else "with the output of the same command and --debug"
    message, inner = one_line(str(error)), cause(error)
    if inner is not None and inner not in message:
        message += f"; cause: {inner}"
    return (
        f"ovspec: internal error: {type(error).__name__} in {place}: {message}\n"
        f"This is a fault of ovspec, not of your input. Please report it {how} and the output of "
        f"`ovspec info` to {_report_to()}."
    )


def one_line(message: str) -> str:
    """A message without line breaks."""
    return " ".join(message.split())


def _report_to() -> str:
    """The issue tracker that the installed package names, if it names one."""
    about = metadata("ovspec")
    for entry in about.get_all("Project-URL") or []:
        label, _, address = str(entry).partition(", ")
        if label.lower() in ("issues", "tracker", "bug tracker"):
            return address
    return "the maintainers of your ovspec package"
