"""Check that target and draft have the same token ids. Needs the base install only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from ovspec_models.folder.json_file import read_json
from ovspec_models.folder.sparse_verify import is_int

_MOST_BYTES = 1 << 29
_AGAIN = "export the model again: `ovspec export -m ... OUT`"
Token: TypeAlias = str | bytes


def check_same_token_ids(target_folder: str | Path, draft_folder: str | Path) -> None:
    """Check that both folders' tokenizers map the same ids to the same tokens.

    A draft proposes token ids, so an id that means another token is an error in every proposal. Only the
    tokenizers are compared: the models' own ``vocab_size`` may be padded differently, as long as the
    draft's embedding has a row for every token but special ones: Gemma 3's text models have none for the one
    that stands for pictures. Merge rules are not: only the target's tokenizer cuts text.

    Raises ValueError naming the first token (lowest id) that differs, the vocabulary that is too small, or
    the file or folder whose tokenizer cannot be read.
    """
    target, draft = Path(target_folder), Path(draft_folder)
    of_target, of_draft = _read_both(target, draft)
    compare_vocabularies(of_target, of_draft, f"'{target}'", f"'{draft}'")
    rows = _model_rows(draft)
    highest = max(of_target, default=-1)
    if rows is not None and rows <= highest:
        highest = max(of_draft.keys() - _special_ids(draft), default=-1)
    if rows is not None and rows <= highest:
        raise ValueError(
            f"draft model '{draft}' has vocab_size {rows}, expected more than the tokenizer's highest "
            f"token id {highest}; use a draft that was trained with the target's tokenizer"
        )


def compare_vocabularies(
    target: Mapping[int, Token], draft: Mapping[int, Token], target_name: str, draft_name: str
) -> None:
    """Raise ValueError naming the lowest id at which two vocabularies (id to token) differ."""
    differing = [i for i in target.keys() | draft.keys() if target.get(i) != draft.get(i)]
    if not differing:
        return
    index = min(differing)
    raise ValueError(
        f"draft {draft_name} and target {target_name} have different tokenizers: token id {index} is "
        f"{_show(target.get(index))} in the target and {_show(draft.get(index))} in the draft; "
        "use a draft that was trained with the target's tokenizer"
    )


def _read_both(target: Path, draft: Path) -> tuple[dict[int, Token], dict[int, Token]]:
    # The two sources spell byte-level tokens differently, so both folders are read from the same one;
    # tokenizer.json first: it needs no compilation.
    for name, read in (("tokenizer.json", _from_tokenizer_json), ("openvino_tokenizer.xml", _from_openvino)):
        if all((folder / name).is_file() for folder in (target, draft)):
            return read(target / name), read(draft / name)
    lacking = next((f for f in (target, draft) if not (f / "openvino_tokenizer.xml").is_file()), draft)
    raise ValueError(
        f"'{lacking}' has no openvino_tokenizer.xml, so its token ids cannot be compared; {_AGAIN}"
    )


def _from_openvino(path: Path) -> dict[int, Token]:
    from openvino_genai import Tokenizer

    from ovspec_transforms import last_line

    try:
        vocab = Tokenizer(str(path.parent)).get_vocab()
    except (RuntimeError, ValueError, IndexError, MemoryError) as error:
        message = f"the OpenVINO tokenizer in '{path.parent}' cannot be read ({last_line(error)}); {_AGAIN}"
        raise ValueError(message) from error
    return {index: token for token, index in vocab.items()}


def _from_tokenizer_json(path: Path) -> dict[int, Token]:
    data = read_json(path, "export the model again", _MOST_BYTES)
    try:
        vocab = data["model"]["vocab"]
        # BPE and WordPiece store a mapping; Unigram a list of [token, score] in the order of the ids.
        named = dict(vocab) if isinstance(vocab, dict) else {t: i for i, (t, _) in enumerate(vocab)}
        named.update({entry["content"]: entry["id"] for entry in data.get("added_tokens") or []})
        if not all(is_int(index) and isinstance(token, str) for token, index in named.items()):
            raise ValueError("a token that is no text, or an id that is no number")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path}: cannot be read as a tokenizer ({error!r}); export the model again"
        ) from None
    return {index: token for token, index in named.items()}


def _special_ids(folder: Path) -> set[int]:
    """Ids of the special tokens that a tokenizer was given beside its vocabulary, where it says so."""
    if not (folder / "tokenizer.json").is_file():
        return set()
    added = read_json(folder / "tokenizer.json", "export the model again", _MOST_BYTES).get("added_tokens")
    return {entry["id"] for entry in added or [] if entry.get("special") is True}


def _model_rows(folder: Path) -> int | None:
    from ovspec_models.folder.model_info import read_shape

    return int(read_shape(folder)["vocab_size"]) if (folder / "config.json").is_file() else None


def _show(token: Token | None) -> str:
    return "absent" if token is None else repr(token)
