"""Pictures in messages: read from data URLs, and from files of a folder that the server was told of."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ovspec.errors import raised_by_us
from ovspec.serve.requests.api_error import ApiError
from ovspec.serve.requests.messages import Message, have_pictures
from ovspec.vision.picture_prompts import PicturePrompts
from ovspec.vision.pictures import Pixels, decode_picture, read_picture
from ovspec.vision.vision_model import Encoded

_FIELD = "messages"


@dataclass(frozen=True, slots=True)
class ServedPictures:
    """What reads the pictures of messages.

    Attributes:
        prompts: of the model; `None`: it reads none.
        folder: whose files messages may name; `None`: they may name none.
    """

    prompts: PicturePrompts | None = None
    folder: Path | None = None

    def encoded(self, messages: Sequence[Message], most: int) -> list[Encoded]:
        """Rows of all pictures of a chat, in their order.

        Args:
            most: rows that the model has positions for; pictures behind them are not read.

        Raises:
            ApiError: 400, a picture that can't be read, or too many.
        """
        urls = [url for message in messages for url in message.pictures]
        if not urls or self.prompts is None:
            return []
        try:
            return self._encoded(self.prompts, urls, most)
        except ValueError as error:
            if not raised_by_us(error):
                raise
            raise ApiError(400, f"{_FIELD}: {error}", _FIELD, "invalid_value") from error

    def _encoded(self, prompts: PicturePrompts, urls: Sequence[str], most: int) -> list[Encoded]:
        found, rows = list[Encoded](), 0
        for url in urls:
            found.append(prompts.encode(self._read(url)))
            rows += len(found[-1].rows)
            if rows > most:
                raise ValueError(
                    f"pictures: the first {len(found)} of {len(urls)} take {rows} tokens, this model's "
                    f"maximum context length is {most}; send fewer or smaller ones"
                )
        return found

    def check(self, messages: Sequence[Message]) -> None:
        """Refuse pictures that nobody reads.

        Raises:
            ApiError: 400.
        """
        if self.prompts is None and have_pictures(messages):
            raise ApiError(400, f"{_FIELD}: this server's model reads no pictures; send text alone", _FIELD)

    def marks(self) -> Iterator[str]:
        """What stands for one picture after the other in the content of messages."""
        index = 0
        while self.prompts is not None:
            yield self.prompts.mark(index)
            index += 1

    def _read(self, url: str) -> Pixels:
        kind = url[:16].partition(":")[0].lower()
        if kind == "data":
            return decode_picture(_data_of(url))
        if kind == "file" and self.folder is not None:
            return read_picture(self._file(url, self.folder))
        allowed = "data URLs" if self.folder is None else "data URLs and files of the allowed folder"
        remedy = " (a server that is to read files is started with --allowed-local-media-path)"
        raise ValueError(
            f"picture: an address that begins with {url[:16]!r} is not fetched; send {allowed}"
            f"{'' if self.folder else remedy}"
        )

    def _file(self, url: str, folder: Path) -> Path:
        """A file in the allowed folder, links followed."""
        root = Path(os.path.realpath(folder))  # resolve() raises where links go in a circle
        with suppress(OSError, ValueError):  # of names that no file can have
            parts = urlsplit(url)
            found = Path(os.path.realpath(root / unquote(parts.path)))
            if parts.netloc in ("", "localhost") and found.is_relative_to(root) and found.is_file():
                return found
        raise ValueError(f"picture: {url[:200]!r} is no file of the folder that this server may read")


def _data_of(url: str) -> bytes:
    head, found, data = url.partition(",")
    if not found or not head.lower().endswith(";base64"):
        raise ValueError(f"picture: expected data:image/...;base64,... and got {head[:64]!r}")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"picture: its data URL is no base64 ({error})") from error
