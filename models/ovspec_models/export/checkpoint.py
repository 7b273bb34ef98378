"""Checks of a Hugging Face checkpoint, local or on the Hub, before the long work of an export."""

from __future__ import annotations

import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ovspec_models.export.reasons import first_line, packages_to_install, reason
from ovspec_models.folder.files import at_home
from ovspec_models.folder.folder_check import is_checkpoint, refuse_gguf
from ovspec_models.folder.json_file import read_json
from ovspec_models.folder.model_info import shape_of
from ovspec_models.folder.shown import cut
from ovspec_models.folder.tokenizer_check import compare_vocabularies
from ovspec_models.folder.unpaged_types import LATENT

_MOST_INDEX_BYTES = 1 << 28  # 60 layers of 384 experts with weights of 4 bits make 20 MB
_TOKENIZER_PATTERNS = ("tokenizer.json", "*.model", "vocab.*", "*.tiktoken", "tokenization_*.py")
_GIVE = "give a checkpoint folder or a Hub ID such as 'Qwen/Qwen3-0.6B'"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that can be loaded.

    ``location`` is what to hand to optimum-intel and transformers: a folder, or a Hub ID. ``name`` is the
    ID or the name of the folder, without the path of this machine. ``vocab_size`` and ``model_type`` are the
    text model's.
    ``quantised`` names the method by which its weights were quantised, where they were.
    """

    location: str
    name: str
    is_local: bool
    vocab_size: int
    token_of_id: dict[int, str | bytes]
    model_type: str = ""
    quantised: str | None = None

    @classmethod
    def open(
        cls, model: str | Path, argument: str, *, trust_remote_code: bool, cache_dir: str | Path | None
    ) -> Checkpoint:
        """Read configuration and tokenizer of `model`, not its weights.

        Raises ValueError naming `argument` when it is no checkpoint that can be read.
        """
        location, is_local = _locate(model, argument)
        if is_local:
            _check_files(Path(location), argument)
        options: dict[str, Any] = {
            "trust_remote_code": trust_remote_code,
            "cache_dir": None if cache_dir is None else str(cache_dir),
        }
        try:
            from transformers import AutoConfig, AutoTokenizer, PretrainedConfig

            said, _ = PretrainedConfig.get_config_dict(location, cache_dir=options["cache_dir"])
        except Exception as error:
            raise ValueError(_unreadable(argument, location, is_local, error)) from error
        if not trust_remote_code:
            _refuse_latents(argument, location, said.get("model_type"))
        try:
            config = AutoConfig.from_pretrained(location, **options)
            tokenizer = AutoTokenizer.from_pretrained(location, **options)
        except Exception as error:  # what a file of unexpected contents raises has no class in common
            raise ValueError(_unreadable(argument, location, is_local, error)) from error
        text = config.get_text_config()
        vocab_size = getattr(text, "vocab_size", None)
        if not isinstance(vocab_size, int):
            raise ValueError(f"{argument} '{location}' has no vocab_size; give a text generation model")
        # As the exported folder is read: what would be refused behind an export of minutes is refused here.
        shape_of(config.to_dict(), Path(location) / "config.json")
        token_of_id = {index: token for token, index in tokenizer.get_vocab().items()}
        name = Path(location).resolve().name if is_local else location
        kind = str(getattr(text, "model_type", ""))
        return cls(location, name, is_local, vocab_size, token_of_id, kind, _quantised(config))

    def check_draft(self, draft: Checkpoint) -> None:
        """Raise ValueError unless `draft` gives every token the same id, and has a row for each."""
        compare_vocabularies(self.token_of_id, draft.token_of_id, f"'{self.name}'", f"'{draft.name}'")
        highest = max(self.token_of_id, default=-1)
        if draft.vocab_size <= highest:
            raise ValueError(
                f"draft_model '{draft.name}' has vocab_size {draft.vocab_size}, expected more than the "
                f"tokenizer's highest token id {highest}; use a draft trained with the target's tokenizer"
            )


def _refuse_latents(argument: str, location: str, model_type: object) -> None:
    if model_type in LATENT:
        raise ValueError(
            f"{argument} '{location}': models of type {model_type!r} can't be served: optimum-intel exports "
            "the code of their authors alone (--trust-remote-code, transformers up to 4.53.3), and "
            "transformers' own keeps latents in place of keys and values from 5.15 on, which OpenVINO can't "
            "page; run them with transformers"
        )


def _quantised(config: Any) -> str | None:
    found = getattr(config, "quantization_config", None)
    if found is None:
        return None
    method = found.get("quant_method") if isinstance(found, dict) else getattr(found, "quant_method", None)
    return str(getattr(method, "value", method) or "by a method that is not named")


def _locate(model: str | Path, argument: str) -> tuple[str, bool]:
    if model == "":
        raise ValueError(f"{argument} is ''; {_GIVE}")
    path = at_home(model)
    if path.is_dir():
        if (path / "openvino_model.xml").is_file() and not is_checkpoint(path):
            raise ValueError(
                f"{argument} '{path}' is an OpenVINO model already; give the Hugging Face checkpoint it came "
                "from, or use the folder as it is"
            )
        if not is_checkpoint(path):
            refuse_gguf(path, argument)
            raise ValueError(
                f"{argument} '{path}' is no Hugging Face checkpoint: it needs config.json and *.safetensors; "
                f"{_GIVE}"
            )
        return str(path), True
    if path.exists():
        refuse_gguf(path, argument)
        raise ValueError(f"{argument} '{path}' is a file; give the checkpoint's folder or a Hub ID")
    if isinstance(model, Path) or not _HUB_ID.fullmatch(model):
        raise ValueError(f"{argument} '{model}' does not exist; {_GIVE}")
    return model, False


def _check_files(folder: Path, argument: str) -> None:
    """Raise ValueError unless there is a tokenizer and no file of weights is truncated."""
    from safetensors import safe_open

    if not any(any(folder.glob(pattern)) for pattern in _TOKENIZER_PATTERNS):
        raise ValueError(
            f"{argument} '{folder}' has no tokenizer: tokenizer.json is missing; copy it there too"
        )
    index = folder / "model.safetensors.index.json"
    named: set[str] = set()
    if index.is_file():
        files = read_json(index, "get it again", _MOST_INDEX_BYTES).get("weight_map")
        if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
            raise ValueError(f"{argument}: {index} has no weight_map from weights to files; get it again")
        named = set(files.values())
    for name in sorted(named | {path.name for path in folder.glob("*.safetensors")}):
        try:
            if not (folder / name).is_file():  # safe_open panics at a name that no file can have
                raise FileNotFoundError("no such file")
            with safe_open(folder / name, "numpy"):
                pass
        except Exception as error:  # its errors have no class in common
            raise ValueError(
                f"{argument}: {folder / cut(name)} is missing, cut short or damaged "
                f"({cut(first_line(error), 300)}); get it again"
            ) from error
    for path in sorted(folder.glob("pytorch_model*.bin")):
        if not _is_whole_pickle(path):
            raise ValueError(f"{argument}: {path} is cut short or damaged; get it again")


def _is_whole_pickle(path: Path) -> bool:
    """Whether ``torch.save`` may have written a file: a complete zip archive, or an old pickle."""
    with path.open("rb") as file:
        return zipfile.is_zipfile(file) or (file.seek(0) == 0 and file.read(1) == b"\x80")


def _unreadable(argument: str, location: str, is_local: bool, error: Exception) -> str:
    cause = reason(error)
    if "custom code" in cause or "trust_remote_code" in str(error):
        return (
            f"{argument} '{location}' comes with code of its own, which would run on this machine; read it, "
            "and pass --trust-remote-code (trust_remote_code=True) to let it run"
        )
    if is_local:
        return (
            f"{argument} '{location}' cannot be read by transformers: {cut(str(cause), 300)}; "
            f"{packages_to_install(error) or 'check config.json and the tokenizer'}"
        )
    return (
        f"{argument} '{location}' is neither a folder nor a model that the Hugging Face Hub gives: {cause}; "
        "check the name, the network and, for a gated model, `hf auth login`"
    )
