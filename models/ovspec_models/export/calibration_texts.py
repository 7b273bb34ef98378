"""Data for the calibration of weights: a data set by name, or the user's texts."""

from __future__ import annotations

from importlib.util import find_spec

from ovspec_models.folder.files import at_home
from ovspec_models.folder.jsonl import read_texts

DATASETS = ("wikitext2", "c4", "c4-new", "gsm8k", "auto")


def check_dataset(dataset: str | list[str]) -> None:
    """Refuse unreadable data before the export starts.

    Raises:
        ValueError: an unknown name, a file without texts, or a name whose package is not installed.
    """
    if isinstance(dataset, str) and dataset in DATASETS:
        if dataset != "auto" and find_spec("datasets") is None:
            raise ValueError(
                f"dataset is {dataset!r}, which needs the package datasets and the network: "
                "pip install datasets, or give a file of texts"
            )
        return
    if not read_dataset(dataset):
        raise ValueError("dataset holds no text; give some texts of the kind that the model will see")


def read_dataset(dataset: str | list[str]) -> str | list[str]:
    """Return a known name as it is, and the texts of a list or a file.

    A file holds one text per line: JSON in a ``.jsonl`` file, as `read_texts` takes it, plain text in any
    other. Empty lines do not count.

    Raises:
        ValueError: it is neither a name nor a file, or the file cannot be read as such.
    """
    if not isinstance(dataset, str):
        return dataset
    if dataset in DATASETS:
        return dataset
    path = at_home(dataset)
    if not path.is_file():
        raise ValueError(
            f"dataset is {dataset!r}, expected one of {', '.join(DATASETS)}, a file with a text in every "
            "line, or a list of texts"
        )
    if path.suffix == ".jsonl":
        return read_texts(path, "dataset")
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"dataset {path} is no text that can be read ({error}); save it as UTF-8") from error
