"""Vectors of texts, by an OpenVINO model of the user's."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino_genai
from numpy.typing import NDArray

from ovspec.errors import InvalidValueError
from ovspec.graphs.checksums import checksum
from ovspec_models.folder.json_file import read_json
from ovspec_transforms import last_line

#: Ways to make one vector of those of the tokens, as openvino_genai names them.
POOLINGS = ("cls", "mean", "last_token")
# Names of sentence-transformers in 1_Pooling/config.json.
_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last_token",
}
_MOST_TOKENS = 512
_EXPORT = "`optimum-cli export openvino --task feature-extraction -m MODEL DIR` makes one"


@dataclass(frozen=True, slots=True)
class EmbeddingModel:
    """Which model made the vectors of a store.

    Attributes:
        folder: where it was; it may lie elsewhere later.
        pooling: one of `POOLINGS`.
        digest: of graph and weights.
        dimensions: of a vector.
    """

    folder: str
    pooling: str
    digest: str
    dimensions: int


class Embedder:
    """Makes vectors of length 1 with `openvino_genai.TextEmbeddingPipeline`.

    Args:
        folder: the model's IR with its tokenizer.
        pooling: one of `POOLINGS`; `None`: as `1_Pooling/config.json` of the folder says, else "cls".
        device: of OpenVINO.

    Raises:
        InvalidValueError: no model for embeddings, or an unknown pooling, also in the folder.
    """

    def __init__(self, folder: Path, pooling: str | None = None, device: str = "CPU") -> None:
        pooling = pooling or _pooling_of(folder)
        if pooling not in POOLINGS:
            raise InvalidValueError(f"pooling={pooling}: expected {', '.join(POOLINGS)}")
        graph = folder / "openvino_model.xml"
        for path in (graph, folder / "openvino_tokenizer.xml"):
            if not path.is_file():
                raise InvalidValueError(
                    f"embedding_model='{folder}': it has no {path.name}, so it holds no model; {_EXPORT}"
                )
        config = openvino_genai.TextEmbeddingPipeline.Config()
        config.pooling_type = getattr(openvino_genai.TextEmbeddingPipeline.PoolingType, pooling.upper())
        config.normalize = True
        config.max_length = _max_length(folder)
        try:
            self._pipeline = openvino_genai.TextEmbeddingPipeline(str(folder), device, config)
            dimensions = len(self._pipeline.embed_query("a"))
        except RuntimeError as error:
            raise InvalidValueError(
                f"embedding_model='{folder}': openvino_genai can't use it ({last_line(error)}); {_EXPORT}"
            ) from error
        digest = hashlib.sha256(graph.read_bytes())
        digest.update(checksum(graph.with_suffix(".bin")).encode())
        self.model = EmbeddingModel(str(folder.resolve()), pooling, digest.hexdigest(), dimensions)

    def documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors f32 `[texts, dimensions]` of chunks; of long ones the first 512 tokens count at most."""
        vectors = self._pipeline.embed_documents(list(texts))
        return np.array(vectors, np.float32).reshape(len(texts), -1)

    def query(self, text: str) -> NDArray[np.float32]:
        """The vector f32 `[dimensions]` of a question."""
        return np.array(self._pipeline.embed_query(text), np.float32)


def _pooling_of(folder: Path) -> str:
    path = folder / "1_Pooling" / "config.json"
    modes = [
        name for name, value in _json(path).items() if name.startswith("pooling_mode_") and value is True
    ]
    if len(modes) > 1 or set(modes) - _MODES.keys():
        raise InvalidValueError(
            f"pooling=...: {path} says {' and '.join(modes)}, which openvino_genai lacks; take another "
            f"model, or name one of {', '.join(POOLINGS)}"
        )
    return _MODES[modes[0]] if modes else "cls"


def _max_length(folder: Path) -> int:
    """Tokens that the model takes, as far as its folder says."""
    found = [
        _json(folder / name).get(key)
        for name, key in (
            ("sentence_bert_config.json", "max_seq_length"),
            ("config.json", "max_position_embeddings"),
        )
    ]
    return min([_MOST_TOKENS, *(length for length in found if isinstance(length, int) and length > 0)])


def _json(path: Path) -> dict[str, Any]:
    return read_json(path, "correct the file or remove it") if path.exists() else {}
