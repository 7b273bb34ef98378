"""Pictures of every form become the same pixels, in the sizes of the processors of transformers."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pictures.reference import on_white, pixels
from PIL import Image
from tiny_pictures import PICTURES, without_pixels

pytest.importorskip("transformers", reason="needs ovspec[export]")
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from ovspec.errors import InvalidTypeError, InvalidValueError
from ovspec.vision.pictures import decode_picture, pictures_of, read_picture
from ovspec.vision.qwen_vision import resized_to, windows


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: f"{picture.mode} {picture.size}")
def test_tensors_arrays_pictures_and_files_are_alike(picture: Image.Image) -> None:
    file = io.BytesIO()
    picture.save(file, "PNG")
    expected = pixels(picture)
    forms: list[Any] = [picture, expected, ov.Tensor(expected), ov.Tensor(expected[None])]
    for form in (*forms, forms[:1]):
        (found,) = pictures_of(form)
        assert np.array_equal(found, expected)
    assert np.array_equal(decode_picture(file.getvalue()), expected)


def test_a_picture_is_turned_as_its_camera_says() -> None:
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6  # the camera was held upright
    PICTURES[0].save(file, "PNG", exif=exif)
    turned = PICTURES[0].transpose(Image.Transpose.ROTATE_270)
    assert np.array_equal(decode_picture(file.getvalue()), np.array(turned))


def test_grey_of_16_bits_is_that_of_8() -> None:
    """Pillow's own conversion cuts off what is above 255."""
    eight = Image.linear_gradient("L")
    deep = Image.fromarray(np.asarray(eight).astype(np.uint16) * 257)
    expected = pixels(eight)
    assert deep.mode == "I;16" and np.array_equal(pictures_of(deep)[0], expected)
    for clear in (None, 257 * 40):
        file = io.BytesIO()
        deep.save(file, "PNG", transparency=clear)
        seen = np.where(expected == 40, 255, expected) if clear else expected
        assert np.array_equal(decode_picture(file.getvalue()), seen)


def damaged() -> Image.Image:
    file = io.BytesIO()
    PICTURES[0].save(file, "PNG")
    return Image.open(io.BytesIO(file.getvalue()[: file.tell() // 2]))


def closed() -> Image.Image:
    file = io.BytesIO()
    PICTURES[0].save(file, "PNG")
    with Image.open(file) as picture:
        return picture


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Image.new("F", (4, 3)), "mode F does not say which value is white"),
        (lambda: Image.new("I", (4, 3)), "mode I does not say which value is white"),
        (lambda: Image.new("La", (4, 3)), "a picture of Pillow can't be read (conversion from La"),
        (damaged, "a picture of Pillow can't be read (image file is truncated"),
        (closed, "a picture of Pillow can't be read ("),
    ],
)
def test_pictures_of_pillow_that_can_not_be_read(make: Callable[[], Image.Image], message: str) -> None:
    with pytest.raises(InvalidValueError, match=r"^[^\n]+$") as error:
        pictures_of([make()])
    assert message in str(error.value)


def test_several_pictures_in_one_tensor() -> None:
    two = np.stack([pixels(PICTURES[0])] * 2)
    assert len(pictures_of([ov.Tensor(two), PICTURES[1]])) == 3
    assert pictures_of(None) == pictures_of([]) == []


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros((0, 5, 3), np.uint8), "picture: has no pixels (5 x 0)"),
        (np.zeros((4, 5, 4), np.uint8), r"got uint8 of shape [4, 5, 4]"),
        (np.zeros((4, 5, 3), np.float32), r"got float32 of shape [4, 5, 3]"),
        (np.zeros((4, 5), np.uint8), r"got uint8 of shape [4, 5]"),
    ],
)
def test_what_is_no_picture_is_refused(value: Any, message: str) -> None:
    with pytest.raises(InvalidValueError) as error:
        pictures_of(value)
    assert message in str(error.value)


@pytest.mark.parametrize("value", ["picture.png", b"bytes", 3, [None]])
def test_other_types_are_refused(value: Any) -> None:
    with pytest.raises(InvalidTypeError, match=r"expected openvino\.Tensor, arrays or pictures of Pillow"):
        pictures_of(value)


def test_a_picture_larger_than_memory_is_refused() -> None:
    huge = np.broadcast_to(np.zeros(3, np.uint8), (1_000_000, 9_000_000, 3))
    message = r"9000000 x 1000000 pixels take 324,000\.0 GB, .* GB are free; give a smaller one"
    with pytest.raises(InvalidValueError, match=message):
        pictures_of(huge)


def test_a_file_that_claims_to_be_huge_is_refused_by_its_header() -> None:
    file = io.BytesIO()
    Image.new("1", (20, 10)).save(file, "PNG")
    data = bytearray(file.getvalue())
    data[16:24] = (200_000).to_bytes(4, "big") + (300_000).to_bytes(4, "big")
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    with pytest.raises(InvalidValueError, match="picture: has more pixels than the 178,956,970"):
        decode_picture(bytes(data))


@pytest.mark.parametrize("form", ["PNG", "GIF", "BMP"])
def test_a_file_without_pixels_is_refused_as_such(form: str, tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(data := without_pixels(form))
    message = r"has no pixels \(0 x 0\); give one that has some"
    with pytest.raises(InvalidValueError, match=f"empty': {message}"):
        read_picture(tmp_path / "empty")
    with pytest.raises(InvalidValueError, match=f"picture: {message}"):
        decode_picture(data)


@pytest.mark.parametrize("form", ["EPS", "TIFF", "PPM"])
def test_files_of_other_forms_are_given_to_no_decoder(form: str) -> None:
    file = io.BytesIO()
    PICTURES[0].convert("RGB").save(file, form)
    with pytest.raises(InvalidValueError, match=r"of no known format\); give a whole PNG, JPEG, WebP, GIF"):
        decode_picture(file.getvalue())


def test_a_file_larger_than_memory_is_refused_by_its_beginning(tmp_path: Path) -> None:
    with (tmp_path / "large.png").open("wb") as file:
        file.truncate(2**43)  # no bytes on the disk
    with pytest.raises(InvalidValueError, match=r"large\.png': is no picture that can be read \(of no known"):
        read_picture(tmp_path / "large.png")


@given(st.binary(max_size=60), st.integers(0, 3000))
def test_damaged_files_are_refused_or_read(noise: bytes, at: int) -> None:
    file = io.BytesIO()
    on_white(PICTURES[2]).save(file, "PNG")
    data = bytearray(file.getvalue())
    data[at : at + len(noise)] = noise
    with suppress(InvalidValueError):
        assert decode_picture(bytes(data)).shape[2] == 3


@given(st.integers(1, 3000), st.integers(1, 3000), st.sampled_from([56 * 56, 4000]))
def test_sizes_are_those_of_transformers(height: int, width: int, least: int) -> None:
    if max(height, width) > 200 * min(height, width):
        with pytest.raises(InvalidValueError, match="one side may be 200 times the other"):
            resized_to(height, width, 28, least, 200_000)
    else:
        assert resized_to(height, width, 28, least, 200_000) == smart_resize(
            height, width, 28, least, 200_000
        )


def test_windows_have_whole_rows_of_merged_patches() -> None:
    order, window = windows((3, 5), 2, 4)
    assert order.tolist() == [0, 1, 5, 6, 2, 3, 7, 8, 4, 9, 10, 11, 12, 13, 14]
    assert np.bincount(window).tolist() == [16, 16, 8, 8, 8, 4]
