"""Pictures of any form as pixels u8 `[height, width, 3]`, or refused in one line."""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.errors import InvalidTypeError, InvalidValueError
from ovspec.memory.machine_memory import available_bytes

Pixels = NDArray[np.uint8]

# Reading a file took 12 to 34 of a pixel (WebP with transparency): what its decoder holds, and copies.
_BYTES_OF_A_PIXEL = 36
# Others are not read: to read EPS, for one, Pillow starts another program.
# Where the first bytes of files have width and height; Pillow knows no file in which one is 0.
_SIZES = ((b"\x89PNG", ">II", 16), (b"GIF8", "<HH", 6), (b"BM", "<ii", 18))
_HEADER = 26
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")


def pictures_of(given: object) -> list[Pixels]:
    """The pictures of an argument of openvino_genai's: tensors, arrays, pictures of Pillow; one, or a list.

    A tensor `[pictures, height, width, 3]` holds several.

    Raises:
        InvalidTypeError: something else.
        InvalidValueError: a tensor that holds no pictures.
    """
    if given is None:
        return []
    every = given if isinstance(given, Sequence) and not isinstance(given, (str, bytes)) else [given]
    return [picture for one in every for picture in _of_one(one)]


def read_picture(file: str | Path) -> Pixels:
    """The picture in a file.

    Raises:
        InvalidValueError: it can't be read, holds no picture, or one that does not fit in memory.
    """
    try:
        with Path(file).open("rb") as opened:  # a large file that is no picture is not read whole
            return _decoded(opened, f"picture '{file}'")
    except OSError as error:
        raise InvalidValueError(f"picture '{file}': {error.strerror or error}") from error


def decode_picture(data: bytes) -> Pixels:
    """The picture in the bytes of a file; transparent parts are white, and it is turned as its camera says.

    Raises:
        InvalidValueError: they hold no picture, or one that does not fit in memory.
    """
    return _decoded(io.BytesIO(data), "picture")


def _decoded(file: BinaryIO, what: str) -> Pixels:
    """The picture in a file; `what` begins messages."""
    image = pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of many pixels; those are checked against memory
            opened = image.open(file, formats=_FORMATS)
            _check_size(opened.width, opened.height, what)
            return _rgb(opened)
    except InvalidValueError:
        raise
    except image.DecompressionBombError as error:  # a file of a few bytes may claim any number of pixels
        raise InvalidValueError(
            f"{what}: has more pixels than the {2 * image.MAX_IMAGE_PIXELS:,} that are read of a file; give "
            "a smaller one"
        ) from error
    # Decoders raise errors of every class at damaged files.
    except Exception as error:
        _check_header(file, what)
        raise InvalidValueError(
            f"{what}: is no picture that can be read ({_reason(error)}); give a whole PNG, JPEG, WebP, GIF "
            "or BMP file"
        ) from error


def _check_header(file: BinaryIO, what: str) -> None:
    """Say of a file without pixels that it has none."""
    file.seek(0)
    header = file.read(_HEADER)
    for begin, form, at in _SIZES:
        if header.startswith(begin) and len(header) == _HEADER:
            width, height = struct.unpack_from(form, header, at)
            if not width or not height:
                _check_size(width, height, what)


def _reason(error: Exception) -> str:
    if type(error).__name__ == "UnidentifiedImageError":  # its text names an object of Python
        return "of no known format"
    return str(error).partition("\n")[0][:200] or type(error).__name__


def _of_one(given: object) -> Iterator[Pixels]:
    if isinstance(given, (ov.Tensor, np.ndarray)):
        yield from _of_array(given.data if isinstance(given, ov.Tensor) else given)
    elif type(given).__module__.partition(".")[0] == "PIL":
        picture: Any = given
        _check_size(picture.width, picture.height, "picture")
        try:
            found = _rgb(picture)
        except InvalidValueError:
            raise
        # One that is read as late as here may be damaged, or closed; decoders raise errors of every class.
        except Exception as error:
            raise InvalidValueError(
                f"images: a picture of Pillow can't be read ({_reason(error)}); give a whole one of mode RGB"
            ) from error
        yield found
    else:
        raise InvalidTypeError(
            "images: expected openvino.Tensor, arrays or pictures of Pillow, one or a list of them, got "
            f"{type(given).__name__}"
        )


def _of_array(array: NDArray[Any]) -> Iterator[Pixels]:
    several = array[None] if array.ndim == 3 else array
    if several.ndim != 4 or several.shape[3] != 3 or several.dtype != np.uint8:
        raise InvalidValueError(
            "images: expected u8 of shape [height, width, 3], or [pictures, height, width, 3], got "
            f"{array.dtype} of shape {list(array.shape)}"
        )
    for picture in several:
        _check_size(picture.shape[1], picture.shape[0], "picture")
        yield np.array(picture)  # its owner may change it while it is read


def _rgb(picture: Any) -> Pixels:
    """Pixels of a picture of Pillow, as they are seen."""
    from PIL import Image, ImageOps

    turned = _eight_bits(ImageOps.exif_transpose(picture))
    if turned.mode in ("RGBA", "LA", "PA") or "transparency" in turned.info:
        clear = turned.convert("RGBA")
        white = Image.new("RGBA", clear.size, (255, 255, 255, 255))
        turned = Image.alpha_composite(white, clear)
    return np.asarray(turned.convert("RGB"))


def _eight_bits(picture: Any) -> Any:
    """A picture of 8 bits a colour: Pillow cuts off larger values, so that nearly all would be white."""
    if not picture.mode.startswith(("I", "F")):
        return picture
    if not picture.mode.startswith("I;16"):
        raise InvalidValueError(
            f"images: a picture of Pillow of mode {picture.mode} does not say which value is white; convert "
            "it to RGB"
        )
    values = np.asarray(picture)
    eight = pillow().fromarray((values >> 8).astype(np.uint8))
    if (clear := picture.info.get("transparency")) is not None:
        eight.putalpha(pillow().fromarray(np.where(values == clear, 0, 255).astype(np.uint8)))
    return eight


def _check_size(width: int, height: int, what: str) -> None:
    if not width or not height:
        raise InvalidValueError(f"{what}: has no pixels ({width} x {height}); give one that has some")
    needed, free = width * height * _BYTES_OF_A_PIXEL, available_bytes()
    if needed > free:
        raise InvalidValueError(
            f"{what}: {width} x {height} pixels take {needed / 1e9:,.1f} GB, {free / 1e9:,.1f} GB are free; "
            "give a smaller one"
        )


def pillow() -> Any:
    """Pillow's module of pictures.

    Raises:
        InvalidValueError: it is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise InvalidValueError('pictures need Pillow: pip install "ovspec[pictures]"') from error
    return Image
