"""The one versioned schema of ``ovspec_config.json``, the file that marks a folder as exported by ovspec."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from ovspec_models.folder.files import replace_file
from ovspec_models.folder.json_file import read_json
from ovspec_models.folder.shown import cut, shown
from ovspec_models.folder.sparse_verify import SparseVerify, is_int

CONFIG_NAME = "ovspec_config.json"
SCHEMA_VERSION = 1
# Names that `operations` may contain.
OPERATIONS = ("sparse_moe", "sparse_ffn")


@dataclass(slots=True)
class CreatedBy:
    """Versions of the packages that wrote the folder; ``None`` where a package took no part."""

    ovspec: str | None = None
    openvino: str | None = None
    optimum_intel: str | None = None
    nncf: str | None = None
    transformers: str | None = None


@dataclass(slots=True)
class ModelSection:
    """What was exported: the source, the weight format, and the shape of the model.

    ``source`` is a Hugging Face ID or the name of a local checkpoint folder. ``weight_format`` is the
    format of the stored weights: ``fp32``, ``fp16``, ``bf16``, ``int8`` or ``int4``.
    ``max_position_embeddings`` is ``None`` for a model that states no limit.
    """

    source: str
    model_type: str
    weight_format: str
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int | None


@dataclass(slots=True)
class OvspecConfig:
    """Contents of ``ovspec_config.json``.

    ``draft_model`` is the draft's folder relative to the target's, or ``None`` when there is no draft.
    ``operations`` names the transforms whose operations the IR holds (``sparse_moe``, ``sparse_ffn``): it can
    be read only where ``ovspec.extension_path()`` is loaded. ``verify``: what sparse verification takes where
    its user leaves a setting open.
    """

    model: ModelSection
    created_by: CreatedBy = field(default_factory=CreatedBy)
    draft_model: str | None = None
    verify: SparseVerify | None = None
    operations: list[str] = field(default_factory=list)
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        self._check(CONFIG_NAME)

    @classmethod
    def load(cls, folder: str | Path) -> OvspecConfig | None:
        """Read ``folder/ovspec_config.json``.

        Returns ``None`` when the file is absent: a folder that plain ``optimum-cli export openvino`` wrote
        is as good. Raises ValueError, in one line that names the file and the key, for a file that is no
        JSON object, has a newer ``schema_version``, an unknown key, a missing key or a wrong type.
        """
        path = Path(folder) / CONFIG_NAME
        if not path.exists():
            return None
        data = read_json(path, "restore the file, or delete it to use the defaults")
        _check_version(path, data)
        top = _section(path, "", OvspecConfig, data)
        top["model"] = ModelSection(**_section(path, "model", ModelSection, top["model"]))
        top["created_by"] = CreatedBy(**_section(path, "created_by", CreatedBy, top.get("created_by", {})))
        if top.get("verify") is not None:
            top["verify"] = _verify(path, top["verify"])
        config = cls.__new__(cls)
        for entry in fields(cls):
            setattr(config, entry.name, top.get(entry.name, [] if entry.name == "operations" else None))
        config._check(str(path))
        return config

    def save(self, folder: str | Path) -> Path:
        """Write ``folder/ovspec_config.json`` atomically and return its path.

        The values are checked first (ValueError as in ``load``): a file that is written can be read back.
        """
        path = Path(folder) / CONFIG_NAME
        self._check(str(path))
        text = json.dumps(self.to_dict(), indent=2) + "\n"
        replace_file(path, text.encode())
        return path

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object, ``schema_version`` first; ``operations`` only where there are any."""
        body = asdict(self)
        body["verify"] = None if self.verify is None else self.verify.to_json()
        order = ("schema_version", "created_by", "model", "draft_model", "operations", "verify")
        return {key: body[key] for key in order if key != "operations" or self.operations}

    def _check(self, where: str) -> None:
        _need(self.schema_version == SCHEMA_VERSION, where, "schema_version", self.schema_version, "1")
        for name, value in asdict(self.created_by).items():
            _need(value is None or isinstance(value, str), where, f"created_by.{name}", value, "text or null")
        for name, value in asdict(self.model).items():
            key = f"model.{name}"
            if name in ("source", "model_type", "weight_format"):
                _need(isinstance(value, str) and value != "", where, key, value, "text")
            elif name != "max_position_embeddings" or value is not None:
                or_null = " or null" if name == "max_position_embeddings" else ""
                _need(is_int(value) and value > 0, where, key, value, f"a positive integer{or_null}")
        if self.draft_model is not None:
            _need(isinstance(self.draft_model, str), where, "draft_model", self.draft_model, "text or null")
            parts = Path(self.draft_model).parts
            inside = bool(parts) and not Path(self.draft_model).is_absolute() and ".." not in parts
            _need(inside, where, "draft_model", self.draft_model, "a folder inside this one, or null")
        names: Any = self.operations
        good = isinstance(names, list) and all(name in OPERATIONS for name in names)
        _need(good, where, "operations", names, f"a list out of {', '.join(OPERATIONS)}")
        if self.verify is not None:
            self._check_anchors(where, self.verify)

    def _check_anchors(self, where: str, verify: SparseVerify) -> None:
        anchors, layers = verify.anchor_layers, self.model.num_hidden_layers
        if anchors is None:
            return
        # Which layer must come first depends on sliding windows, which only the graph shows.
        good = len(anchors) > 0 and all(0 <= layer < layers for layer in anchors)
        good = good and all(a < b for a, b in pairwise(anchors))
        expected = f"null, or at least one layer number from 0 to {layers - 1}, increasing"
        _need(good, where, "verify.anchor_layers", list(anchors), expected)


def _check_version(path: Path, data: Mapping[str, Any]) -> None:
    version: Any = data.get("schema_version")
    _need(is_int(version) and version >= 1, path, "schema_version", version, "a positive integer")
    if version > SCHEMA_VERSION:
        raise ValueError(
            f"{path}: schema_version is {shown(version)}, this ovspec reads up to {SCHEMA_VERSION}; "
            "upgrade ovspec (pip install -U ovspec) or export the model again with this version"
        )


def _section(path: Path, prefix: str, kind: type[Any], data: Any) -> dict[str, Any]:
    """Return `data` as keyword arguments of the dataclass `kind`, or raise for unknown and missing keys."""
    _need(isinstance(data, dict), path, prefix, data, "a JSON object")
    known = [entry.name for entry in fields(kind)]
    dotted = f"{prefix}." if prefix else ""
    for key in data:
        if key not in known:
            raise ValueError(
                f"{path}: unknown key '{dotted}{cut(key)}' (known: {', '.join(known)}); correct or remove it"
            )
    # Only the model section and its fields have no default.
    required = known if kind is ModelSection else ["model"] if kind is OvspecConfig else []
    for key in required:
        if key not in data:
            raise ValueError(f"{path}: key '{dotted}{key}' is missing; add it, or export the model again")
    return dict(data)


def _verify(path: Path, data: Any) -> SparseVerify:
    _need(isinstance(data, dict), path, "verify", data, "a JSON object")
    try:
        return SparseVerify.from_json(data)
    except ValueError as error:
        raise ValueError(f"{path}: verify.{error}") from None


def _need(good: bool, where: str | Path, key: str, value: Any, expected: str) -> None:
    if not good:
        raise ValueError(
            f"{where}: {key} is {shown(value)}, expected {expected}; correct it, or export the model again"
        )
