"""Inputs of a call as token ids: tokenizer, chat template, end-of-sequence ids of a folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai
from openvino_genai import ChatHistory, GenerationConfig, TokenizedInputs

from ovspec.errors import InvalidTypeError, InvalidValueError
from ovspec.generation.generation_config import check_supported
from ovspec.generation.word_cache import tokenizer_without_word_cache
from ovspec_models import ModelInfo
from ovspec_models.folder.json_file import read_json
from ovspec_models.folder.shown import cut, shown
from ovspec_models.folder.sparse_verify import is_int
from ovspec_transforms import last_line

# What openvino_genai's tokenizer reads beside its models; some hold whole vocabularies.
_READ_BY_GENAI = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.json", "config.json")
_MOST_BYTES, _MOST_TOKENS = 1 << 28, 2**31
# What a chat template says, in the engine's account of it.
_TEMPLATE_ERROR = re.compile(
    r"(?:Minja's error: (.+?)(?: at row \d+, column \d+:)?|\A(?!Exception from )(.+?):?)$", re.MULTILINE
)
_WHOLE = re.compile("[iu](8|16|32|64)")
_AGAIN = "copy it again, or export the model again: `ovspec export -m ... OUT`"


def texts_of(inputs: object) -> list[str]:
    """The prompts of a list; a single text is not a list.

    Raises:
        InvalidTypeError: it is not a sequence.
    """
    if not isinstance(inputs, Sequence) or isinstance(inputs, bytes):
        raise InvalidTypeError(
            f"inputs: expected text, texts, a ChatHistory or tokenized inputs, got {type(inputs).__name__}"
            + _remedy(inputs)
        )
    return list(inputs)


def _remedy(value: object) -> str:
    """How openvino_genai takes what is given as another library takes it."""
    if isinstance(value, dict):
        return "; give messages as ovspec.ChatHistory([...])"
    ids = isinstance(value, int | list) or hasattr(value, "__array__")
    return "; give token ids as openvino.Tensor(array), i64 [prompts, tokens]" if ids else ""


def check_texts(texts: Sequence[object], name: str = "inputs") -> None:
    """Refuse prompts, or the text of an argument `name`, that are no text.

    Raises:
        InvalidTypeError: something else than text.
        InvalidValueError: text with a part of a character.
    """
    for text in texts:
        if not isinstance(text, str):
            remedy = _remedy(text) if name == "inputs" else ""
            raise InvalidTypeError(f"{name}: expected text, got {type(text).__name__}{remedy}")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidValueError(
                f"{name}: it is no valid text ({error.reason}); decode it as UTF-8"
            ) from error


def encode(tokenizer: openvino_genai.Tokenizer, text: str) -> list[int]:
    """Token ids of a text that is no message, with the special tokens that begin or end one."""
    check_texts([text])
    return tokenized(tokenizer, text, special_tokens=True)


def tokenized(tokenizer: openvino_genai.Tokenizer, text: str, special_tokens: bool) -> list[int]:
    """Token ids of a prompt; a chat template has written its special tokens already."""
    encoded = tokenizer.encode(text) if special_tokens else tokenizer.encode(text, add_special_tokens=False)
    ids: list[int] = np.array(encoded.input_ids.data).reshape(-1).tolist()
    return ids


def templated(
    tokenizer: openvino_genai.Tokenizer, history: ChatHistory, add_generation_prompt: bool = True
) -> str:
    """A chat through the chat template, ending where the answer begins, or behind the last message.

    Raises:
        InvalidValueError: the model has no chat template, the history no message, or the template refuses it.
    """
    if not len(history):
        raise InvalidValueError("inputs: the ChatHistory is empty; append a message")
    if not tokenizer.chat_template:
        raise InvalidValueError(
            "this model has no chat template: pass text, or tokenizer.set_chat_template(...) first"
        )
    try:
        return str(tokenizer.apply_chat_template(history, add_generation_prompt=add_generation_prompt))
    except (RuntimeError, ValueError) as error:
        said = _TEMPLATE_ERROR.search(str(error))
        words = said[1] or said[2] if said else last_line(error)
        raise InvalidValueError(
            f"messages: the model's chat template refused them ({words}); change them, or the template"
        ) from error


def token_rows(inputs: TokenizedInputs | ov.Tensor) -> list[list[int]]:
    """Token ids of every prompt of a padded batch i64 `[prompts, tokens]`, by its attention mask."""
    ids = inputs if isinstance(inputs, ov.Tensor) else inputs.input_ids
    if not _WHOLE.fullmatch(kind := ids.element_type.to_string()):
        raise InvalidValueError(f"inputs: expected token ids of type i64, got {kind}; cast them")
    rows = np.array(ids.data, np.int64)
    if rows.ndim != 2:
        raise InvalidValueError(
            f"inputs: expected token ids of shape [prompts, tokens], got {list(rows.shape)}"
        )
    if isinstance(inputs, ov.Tensor):
        return [row.tolist() for row in rows]
    mask = np.array(inputs.attention_mask.data) == 1
    if mask.shape != rows.shape:
        raise InvalidValueError(
            f"inputs: attention_mask has the shape {list(mask.shape)}, input_ids {list(rows.shape)}; give "
            "each token an entry"
        )
    return [row[keep].tolist() for row, keep in zip(rows, mask, strict=True)]


def check_prompts(prompts: Sequence[Sequence[int]], positions: int, vocab_size: int, why: str = "") -> None:
    """Refuse prompts that the model cannot process.

    Args:
        why: why there are no more positions, where a user may expect them.

    Raises:
        ValueError: no prompts, an empty one, one without room for an answer, or ids outside the vocabulary.
    """
    if not prompts:
        raise InvalidValueError("inputs: expected at least one prompt")
    for prompt in prompts:
        if not prompt:
            raise InvalidValueError("inputs: a prompt has no tokens; give some text")
        if len(prompt) >= positions:
            raise InvalidValueError(
                f"inputs: the prompt has {len(prompt)} tokens, the model {positions} positions"
                f"{why and f' ({why})'}; shorten it"
            )
        if min(prompt) < 0 or max(prompt) >= vocab_size:
            raise InvalidValueError(
                f"inputs: token ids must be 0 to {vocab_size - 1}, got {min(prompt)} to {max(prompt)}"
            )


def check_tokenizer(models_path: Path) -> None:
    """Refuse a folder without tokenizer or detokenizer.

    Raises:
        ValueError: one of them is missing.
    """
    for name in ("openvino_tokenizer.xml", "openvino_detokenizer.xml"):
        if not (models_path / name).is_file():
            raise ValueError(
                f"{models_path} has no {name}; export the model again: `ovspec export -m ... OUT`"
            )


def read_tokenizer(models_path: Path) -> openvino_genai.Tokenizer:
    """The folder's tokenizer and detokenizer.

    Raises:
        ValueError: one of them is missing or can't be read.
    """
    check_tokenizer(models_path)
    for name in _READ_BY_GENAI:  # its reader ends the process where a file is nested a million times
        if (models_path / name).exists():
            read_json(models_path / name, _AGAIN, _MOST_BYTES)
    try:
        return tokenizer_without_word_cache(models_path)
    except (RuntimeError, ValueError, IndexError, MemoryError) as error:  # lengths read from a damaged file
        raise ValueError(
            f"the tokenizer in {models_path} can't be read: {last_line(error)}; {_AGAIN}"
        ) from error


def read_generation_config(models_path: Path) -> GenerationConfig:
    """The folder's `generation_config.json`, or the defaults.

    Raises:
        ValueError: it cannot be read, or has an unsupported option.
    """
    path = models_path / "generation_config.json"
    if not path.exists():
        return GenerationConfig()
    remedy = "correct the file or remove it"
    eos = read_json(path, remedy).get("eos_token_id")
    for token in eos if isinstance(eos, list) else [eos]:
        if token is not None and not (is_int(token) and -1 <= token < _MOST_TOKENS):
            raise ValueError(f"{path}: eos_token_id is {shown(eos)}, expected token ids; {remedy}")
    try:
        config = GenerationConfig(str(path))
        check_supported(config)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"{path}: {cut(last_line(error), 300)}; {remedy}") from error
    return config


def eos_token_ids(
    info: ModelInfo, config: GenerationConfig, tokenizer: openvino_genai.Tokenizer
) -> tuple[int, ...]:
    """End-of-sequence ids of a folder, the main one first.

    From its generation config, else from `config.json`, else from the tokenizer.
    """
    own: int = tokenizer.get_eos_token_id()
    if config.eos_token_id != -1:
        main, ids = config.eos_token_id, set(config.stop_token_ids)
    elif info.eos_token_ids:
        main, ids = own if own in info.eos_token_ids else min(info.eos_token_ids), set(info.eos_token_ids)
    else:
        return (own,) if own >= 0 else ()
    return (main, *sorted(ids - {main}))
