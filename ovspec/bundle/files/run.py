#!/usr/bin/env python3
"""Generate with the model of this bundle: takes the options of `ovspec generate`, all but the model.

--verify-files compares the content of every file with the manifest, also where nothing seems to have changed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.dont_write_bytecode = True  # bytecode files would not be in the manifest
FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))

# In a bundle and in the repository, the module is beside this file.
from check_files import VENV, check_files  # type: ignore[import-not-found]  # noqa: E402


def main(arguments: list[str]) -> int:
    """Check every file, then replace this process by `ovspec generate` of the bundle's environment."""
    try:
        command = command_of(arguments)
        os.execv(command[0], command)
    except (ValueError, OSError) as error:
        print(f"ovspec bundle: error: {error}", file=sys.stderr)
        return 2


def command_of(arguments: list[str]) -> list[str]:
    """The command line of `ovspec generate` for `arguments`.

    Raises ValueError for a bundle that was changed or is not installed, and for an option that names a model.
    """
    for argument in arguments:
        if argument.startswith("-m") or argument.split("=")[0] == "--model":
            raise ValueError(f"{argument}: run.py generates with the model of this bundle; leave it out")
    everything = "--verify-files" in arguments
    arguments = [argument for argument in arguments if argument != "--verify-files"]
    draft = check_files(FOLDER, everything)["draft_model"]
    python = FOLDER / VENV / "bin" / "python"
    if not (FOLDER / VENV / "installed").is_file():
        raise ValueError(f"{FOLDER / VENV} is not installed; run {FOLDER / 'install.sh'} first")
    command = [str(python), "-I", "-m", "ovspec", "generate", "--model", str(FOLDER / "model")]
    if value_of("--draft-model", arguments) is None:
        takes_model = value_of("--drafter", arguments) in (None, "assistant", "auto")
        command += ["--draft-model", str(FOLDER / "model" / draft) if draft and takes_model else "none"]
    return command + arguments


def value_of(option: str, arguments: list[str]) -> str | None:
    """The last value of an option, given as `option value` or `option=value`; None without it."""
    found = None
    for argument, following in zip(arguments, [*arguments, ""][1:], strict=True):
        name, equals, value = argument.partition("=")
        if name == option:
            found = value if equals else following
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
