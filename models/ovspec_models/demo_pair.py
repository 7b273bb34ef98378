"""The embedded demo pair: a small target with its draft, ready to run without a download."""

from __future__ import annotations

from pathlib import Path


def demo_pair_path() -> Path:
    """Return the folder of the demo target's OpenVINO IR; its draft lies in ``draft/`` below.

    Raises RuntimeError when the package was installed without its data.
    """
    folder = Path(__file__).parent / "demo_ir"
    if not (folder / "openvino_model.xml").is_file():
        raise RuntimeError(
            f"the demo pair is missing from {folder}; reinstall ovspec, or run "
            "`python tools/demo/build_ir.py` in a checkout"
        )
    return folder
