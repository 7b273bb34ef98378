"""Which files of a folder hold its text model: one graph, or two where it reads pictures too."""

from __future__ import annotations

from pathlib import Path

_TEXT, _LANGUAGE = "openvino_model.xml", "openvino_language_model.xml"
_EMBEDDING = "openvino_text_embeddings_model.xml"


def graph_of(folder: Path) -> Path:
    """The file of a folder's graph; where the model reads pictures, that of its language model."""
    language = folder / _LANGUAGE
    return language if language.is_file() and not (folder / _TEXT).is_file() else folder / _TEXT


def text_embedding_of(folder: Path) -> Path | None:
    """The file of the graph that looks tokens up in the embedding; `None`: `graph_of` does so itself."""
    return folder / _EMBEDDING if graph_of(folder).name == _LANGUAGE else None


def graphs_of(folder: Path) -> list[Path]:
    """All graphs of the text model."""
    embedding = text_embedding_of(folder)
    return [graph_of(folder), *([] if embedding is None else [embedding])]


def weights_of(graph: Path) -> Path:
    """The file with the weights of a graph."""
    return graph.with_suffix(".bin")


def weight_bytes(folder: Path) -> int:
    """The size of the text model's weights."""
    return sum(weights_of(graph).stat().st_size for graph in graphs_of(folder))
