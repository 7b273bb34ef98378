"""Prompts with pictures: their tokens, and what the pictures bring to them."""

from __future__ import annotations

import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from ovspec.cache.visual_prompt import VisualPrompt
from ovspec.errors import InvalidValueError
from ovspec.generation.chat_prompts import ChatPrompts
from ovspec.generation.inputs import check_texts
from ovspec.vision.pictures import Pixels
from ovspec.vision.vision_model import Encoded, VisionModel

_UNIVERSAL = re.compile(r"<ov_genai_image_(\d{1,6})>\n?")
#: Rows of pictures that are kept for later turns of chats.
KEPT_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class PicturePrompt:
    """A prompt: its tokens, and what pictures bring to it."""

    tokens: list[int]
    visual: VisualPrompt | None


class PicturePrompts:
    """Makes prompts of texts and pictures.

    In the content of messages a mark that nobody can guess stands for each picture; behind the chat template
    it becomes what the model reads there. So nobody can write a text that stands for a picture.
    """

    def __init__(self, chat_prompts: ChatPrompts, vision: VisionModel) -> None:
        self._chat_prompts, self._vision = chat_prompts, vision
        self._secret = secrets.token_hex(12)
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, Encoded] = OrderedDict()

    @property
    def tag(self) -> str:
        """What stands for a picture in prompts of openvino_genai's, beside its universal tags."""
        return self._vision.tag

    @property
    def text(self) -> str:
        """What stands for a picture where the model reads it."""
        return self._vision.text

    def mark(self, index: int) -> str:
        """What stands for a picture in the content of a message."""
        return f"[picture {index} {self._secret}]"

    def encode(self, picture: Pixels) -> Encoded:
        """Rows of a picture; those of the last pictures are kept."""
        hashed = blake2b(repr(picture.shape).encode(), digest_size=32)
        hashed.update(np.ascontiguousarray(picture).data)
        key = hashed.digest()
        with self._lock:
            found = self._kept.get(key) or self._vision.encode(picture)
            self._kept[key] = found
            self._kept.move_to_end(key)
            while len(self._kept) > 1 and sum(one.nbytes for one in self._kept.values()) > KEPT_BYTES:
                self._kept.popitem(last=False)
        return found

    def has_tag(self, text: str) -> bool:
        """Whether a message says where its pictures stand."""
        return bool(_UNIVERSAL.search(text)) or self.own_tags(text) > 0

    def own_tags(self, text: str) -> int:
        """How often the model's own tag stands in a message."""
        return text.count(self._vision.tag)

    def marked(self, text: str, first: int, count: int, known: int = 0) -> str:
        """A message as openvino_genai takes it, with marks for its pictures.

        `<ov_genai_image_i>` stands for picture i. Where there is none, the model's own tag stands for one
        picture after the other, and where there is none of these either, they stand before the text.

        Args:
            first: number of the first picture of this message, in a chat that has had others.
            count: pictures of this message.
            known: pictures that any message may name; those up to the last of this one in any case.

        Raises:
            InvalidValueError: pictures that are not there, or that nothing stands for, or both kinds of tags.
        """
        check_texts([text])
        named, own, known = _UNIVERSAL.findall(text), self.own_tags(text), max(known, first + count)
        if named and own:
            raise InvalidValueError("prompt: <ov_genai_image_i> and the model's own tags can't be mixed")
        if named:
            if missing := [index for index in map(int, named) if index >= known]:
                raise InvalidValueError(
                    f"prompt: <ov_genai_image_{missing[0]}> stands for no picture; {known} were given"
                )
            return _UNIVERSAL.sub(lambda found: self.mark(int(found[1])), text)
        marks = [self.mark(first + index) for index in range(count)]
        if not own:
            return "".join(marks) + text
        if own != count:
            raise InvalidValueError(f"prompt: {own} tags of pictures for {count} pictures; give one for each")
        parts = text.split(self._vision.tag)
        return "".join(part + mark for part, mark in zip(parts, [*marks, ""], strict=True))

    def prompt(self, text: str, pictures: Sequence[Encoded], templated: bool = True) -> PicturePrompt:
        """The prompt of a text that came from the chat template, or of another.

        Args:
            text: with a mark wherever it has a picture.
            pictures: by their numbers.

        Raises:
            InvalidValueError: the text has tokens of pictures beside its marks.
        """
        found = [int(number) for number in re.findall(rf"\[picture (\d+) {self._secret}\]", text)]
        text = re.sub(rf"\[picture \d+ {self._secret}\]", lambda _: self._vision.text, text)
        if templated:
            tokens = self._chat_prompts.tokenized(text)
        else:
            tokens = self._chat_prompts.encode(text, apply_chat_template=False)
        if not found:
            return PicturePrompt(tokens, None)
        return self._expanded(tokens, [pictures[number] for number in found])

    def _expanded(self, tokens: Sequence[int], pictures: Sequence[Encoded]) -> PicturePrompt:
        pad = self._vision.pad_id
        if (pads := tokens.count(pad)) != len(pictures):
            raise InvalidValueError(
                f"prompt: {pads} tokens stand for {len(pictures)} pictures; leave names of special tokens "
                "out of the text"
            )
        left, expanded, begins = iter(pictures), list[int](), list[int]()
        for token in tokens:
            if token == pad:
                begins.append(len(expanded))
                expanded += [pad] * len(next(left).rows)
            else:
                expanded.append(token)
        runs = [np.arange(len(one.rows)) + begin for one, begin in zip(pictures, begins, strict=True)]
        deep = [one.deep for one in pictures if one.deep is not None]
        visual = VisualPrompt(
            np.concatenate(runs),
            np.concatenate([one.rows for one in pictures]),
            np.concatenate([one.keys for one in pictures]),
            self._vision.positions(len(expanded), begins, pictures),
            self._runs(runs) if self._vision.window else (),
            np.concatenate(deep, 1) if deep else None,
        )
        return PicturePrompt(expanded, visual)

    def _runs(self, places: Sequence[NDArray[np.int64]]) -> tuple[tuple[int, int], ...]:
        """Where pictures stand whose rows see each other."""
        last, window = int(places[-1][-1]) + 1, self._vision.window
        if last > window:
            raise InvalidValueError(
                f"prompt: its last picture ends at token {last}, and those of this model are served within "
                f"the first {window}, the sliding window of its layers: put them in front, or use "
                "attention='stock'"
            )
        return tuple((int(run[0]), int(run[-1]) + 1) for run in places)
