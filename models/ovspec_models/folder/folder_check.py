"""Which folders hold a model that can be run."""

from __future__ import annotations

from pathlib import Path

from ovspec_models.folder.graph_files import graphs_of, weights_of

_CHECKPOINT_PATTERNS = ("*.safetensors", "pytorch_model*.bin", "model*.bin")


def is_checkpoint(folder: Path) -> bool:
    """Whether `folder` contains the weights of a Hugging Face checkpoint."""
    found = (f for pattern in _CHECKPOINT_PATTERNS for f in folder.glob(pattern))
    return (folder / "config.json").is_file() and any(not f.name.startswith("openvino") for f in found)


def refuse_gguf(path: Path, what: str) -> None:
    """Raise ValueError when `path` is a GGUF file, or a folder with one in it."""
    files = [path] if path.is_file() else sorted(path.glob("*.gguf"))
    for file in files:
        with file.open("rb") as opened:
            is_gguf = opened.read(4) == b"GGUF"
        if is_gguf or file.suffix == ".gguf":
            raise ValueError(
                f"{what} '{file}' is a GGUF file: give the file where a model is to be run, or make a folder "
                f"of it: `ovspec export -m {file} OUT`"
            )


def check_model_folder(path: Path) -> None:
    """Refuse a folder without a model that can be run.

    Raises:
        ValueError: something is missing; it says what, and the remedy.
    """
    if not path.exists():
        looks_like_a_name = len(path.parts) == 2 and path.parts[0][0] not in "./" and path.parent.is_dir()
        why = f"'{path.parent}' is a folder here, so no hub is asked; " if looks_like_a_name else ""
        raise ValueError(
            f"model folder '{path}' does not exist; {why}give a folder that `ovspec export -m ... OUT` has "
            "made, a GGUF file, or a name on a hub as owner/name, owner/name@revision or owner/name:file.gguf"
        )
    if not path.is_dir():
        refuse_gguf(path, "model")
        raise ValueError(f"model folder '{path}' is a file; give the folder that holds openvino_model.xml")
    graphs = graphs_of(path)
    needed = (*graphs, *map(weights_of, graphs), path / "config.json")
    missing = [file.name for file in needed if not file.is_file()]
    if not missing:
        return
    if "openvino_model.xml" in missing and is_checkpoint(path):
        raise ValueError(
            f"'{path}' is a Hugging Face checkpoint, not an OpenVINO model; "
            f"export it first: `ovspec export -m {path} OUT`"
        )
    refuse_gguf(path, "model")
    raise ValueError(
        f"'{path}' is no OpenVINO model folder: {', '.join(missing)} missing; make one: "
        "`ovspec export -m ... OUT`"
    )
