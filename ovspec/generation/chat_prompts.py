"""Prompts of chats: the names of special tokens in messages stay text."""

from __future__ import annotations

import logging
import re
import secrets
from functools import cached_property
from pathlib import Path
from typing import Any

import openvino_genai
from openvino_genai import ChatHistory

from ovspec.errors import InvalidValueError
from ovspec.generation.inputs import check_texts, encode, templated, tokenized
from ovspec.generation.split_names import tokenizer_without_marks

_LOG = logging.getLogger(__name__)


class ChatPrompts:
    """Makes token ids of chats.

    Who writes a message may not end it with a control token such as <|im_end|>, and go on as somebody else.
    A mark in each such name keeps the tokenizer from finding it; a second tokenizer drops the marks when it
    has searched. Where that one would still make one token of the name, as those of SentencePiece do, this
    token is replaced by one for each character. Messages without such names are tokenized as ever.

    Args:
        tokenizer: applies the template.
        folder: with the tokenizer's files; those of another tokenizer are not used.
        special_tokens: whether the names of special tokens in messages become these tokens, where a call
            does not say.
    """

    def __init__(
        self, tokenizer: openvino_genai.Tokenizer, folder: Path, special_tokens: bool = False
    ) -> None:
        self._tokenizer, self._folder, self._special_tokens = tokenizer, folder, special_tokens
        # Nobody can guess it, so no message has it.
        self._mark = f"ovspec{secrets.token_hex(12)}"

    def encode(self, text: str, apply_chat_template: bool) -> list[int]:
        """Token ids of one prompt, through the chat template if there is one and it is wanted."""
        if apply_chat_template and self._tokenizer.chat_template:
            return self.tokenized(self.as_turn(text))
        return encode(self._tokenizer, text)

    def as_turn(self, text: str) -> str:
        """A prompt as the only message of a chat, for `tokenized`."""
        check_texts([text])
        return self.templated(ChatHistory([{"role": "user", "content": text}]))

    def templated(
        self,
        history: ChatHistory,
        special_tokens: bool | None = None,
        add_generation_prompt: bool = True,
        continues: bool = False,
    ) -> str:
        """A chat through the template, ending where the answer begins, for `tokenized`.

        Args:
            special_tokens: whether the names of special tokens in messages become these tokens; `None`: as
                the constructor was told.
            add_generation_prompt: whether the text ends with what an answer begins with.
            continues: whether the text ends with the content of the last message, which the answer goes on.

        Raises:
            InvalidValueError: the model has no chat template, the history no message, the template refuses
                it, or the text has not the content that it is to end with.
        """
        if not (self._special_tokens if special_tokens is None else special_tokens):
            messages = history.get_messages()
            marked = [self._marked(message) for message in messages]
            if marked != messages:
                tools, context = history.get_tools(), history.get_extra_context()
                history = ChatHistory(marked)
                history.set_tools(tools)
                history.set_extra_context(context)
        text = templated(self._tokenizer, history, add_generation_prompt and not continues)
        if not continues:
            return text
        last = str(history.get_messages()[-1]["content"]).strip()
        before, found, _ = text.rpartition(last)
        if not found:
            raise InvalidValueError(
                "continue_final_message: the chat template does not show the last message as it is; "
                "leave it out"
            )
        return before + found

    def tokenized(self, text: str) -> list[int]:
        """Token ids of what `templated` gave."""
        return self._tokens_of_marked(text) if self._mark in text else self._encode(text)

    @property
    def names_of_special_tokens(self) -> str:
        """What becomes of them in messages, in a line."""
        if not self._names:
            return "the tokenizer has none"
        if self._second is not None:
            return "stay text"
        marked = self._marked(" ".join(self._names))
        if any(token in self._special for token in self._tokens_of_marked(marked)):
            return "become these tokens: the tokenizer can't keep them text"
        return "stay text, a token for each character"

    def _marked(self, value: Any) -> Any:
        """A message with marks in the names of special tokens."""
        if isinstance(value, str):
            # One name after the other: a regular expression of all would let no other thread run meanwhile.
            for name in self._names:
                marked = name[0] + self._mark + name[1:]
                while name in value and name not in marked:  # again where one ends as it begins
                    value = value.replace(name, marked)
            return value
        if isinstance(value, dict):
            return {name: entry if name == "role" else self._marked(entry) for name, entry in value.items()}
        return [self._marked(entry) for entry in value] if isinstance(value, list) else value

    def _tokens_of_marked(self, text: str) -> list[int]:
        if self._second is not None:
            return tokenized(self._second, text, special_tokens=False)
        tokens = self._encode(text.replace(self._mark, ""))
        names = "|".join(
            f"{re.escape(name[0])}(?:{self._mark})?{re.escape(name[1:])}" for name in self._names
        )
        found = re.findall(names, text)
        special = [at for at, token in enumerate(tokens) if token in self._special]
        if [self._special[tokens[at]] for at in special] != [name.replace(self._mark, "") for name in found]:
            _LOG.warning(
                "special tokens in a message became control tokens: the tokenizer can't keep them text"
            )
            return tokens
        for at, name in reversed(list(zip(special, found, strict=True))):
            if self._mark in name:
                tokens[at : at + 1] = self._spelled(self._special[tokens[at]])
        return tokens

    def _encode(self, text: str) -> list[int]:
        return tokenized(self._tokenizer, text, special_tokens=False)

    def _spelled(self, name: str) -> list[int]:
        """A token for each character, or for each of its bytes."""
        tokens = []
        for character in name:
            data = character.encode()
            bytewise = [self._vocabulary.get(b"<0x%02X>" % byte) for byte in data]
            if data in self._vocabulary:
                tokens.append(self._vocabulary[data])
            elif None not in bytewise:
                tokens += [token for token in bytewise if token is not None]
            else:
                tokens += self._encode(character)[-1:]
        return tokens

    @cached_property
    def _vocabulary(self) -> dict[bytes, int]:
        return dict(self._tokenizer.get_vocab())

    @cached_property
    def _special(self) -> dict[int, str]:
        """Special tokens, as they would be written; without the one for unknown characters."""
        tokens = list(self._vocabulary.values())
        shown = self._tokenizer.decode([[token] for token in tokens])
        hidden = [token for token, text in zip(tokens, shown, strict=True) if text == ""]
        unknown = self._encode("\U0010fffd")[-1:]
        named = {token: str(self._tokenizer.decode([token], skip_special_tokens=False)) for token in hidden}
        return {
            token: name.strip()
            for token, name in named.items()
            if len(name.strip()) > 1 and [token] != unknown
        }

    @cached_property
    def _names(self) -> list[str]:
        """The longest first, as a search must try them."""
        return sorted(self._special.values(), key=lambda name: (-len(name), name))

    @cached_property
    def _second(self) -> openvino_genai.Tokenizer | None:
        """The tokenizer that drops the marks; `None` where that does not keep all names text."""
        try:
            made = tokenizer_without_marks(self._folder, self._mark)
        except (ValueError, RuntimeError, OSError) as error:
            _LOG.info("%s: a tokenizer that keeps special tokens text can't be made: %s", self._folder, error)
            return None
        names = [f"{name} I'm 1 é世🙂\n" for name in self._names]
        alike, marked = (
            tokenized(made, "".join(texts), special_tokens=False) for texts in (names, self._marked(names))
        )
        same = alike == self._encode("".join(names))
        return made if same and not any(token in self._special for token in marked) else None
