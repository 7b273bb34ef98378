"""The tokenizer of a folder keeps no words, and is otherwise what OpenVINO GenAI reads."""

import random
import string
import tempfile
from pathlib import Path

import numpy as np
import openvino_genai
import pytest
from generation.conftest import Known
from hunts.fuzz_hunt import memory_mb

from ovspec.generation.inputs import read_tokenizer
from ovspec.generation.split_names import tokenizer_without_marks
from ovspec_models import demo_pair_path

WORDS, LETTERS = 40, 100_000


def _growth(tokenizer: openvino_genai.Tokenizer) -> float:
    """MB that long words leave."""
    chance = random.Random(1)

    def words(count: int) -> None:
        for _ in range(count):
            tokenizer.encode("".join(chance.choices(string.ascii_lowercase, k=LETTERS)))

    words(4)
    before = memory_mb()
    words(WORDS)
    return memory_mb() - before


@pytest.mark.slow
@pytest.mark.parametrize("marks", [False, True], ids=["plain", "without marks"])
def test_long_words_leave_no_memory(marks: bool) -> None:
    folder = demo_pair_path()
    tokenizer = tokenizer_without_marks(folder, "\u2063") if marks else read_tokenizer(folder)
    assert _growth(tokenizer) < WORDS * LETTERS / 2**20  # less than the words themselves


def test_the_tokenizer_is_otherwise_genais(known: Known) -> None:
    ours, genais = read_tokenizer(known.folder), openvino_genai.Tokenizer(str(known.folder))
    texts = ["Once upon a time", "I'm done!\n\n 你好 é <|endoftext|>", "", "a" * 3000, " x  y "]
    for text in texts * 2:
        np.testing.assert_array_equal(ours.encode(text).input_ids.data, genais.encode(text).input_ids.data)
    for name in (
        "bos_token",
        "bos_token_id",
        "eos_token",
        "eos_token_id",
        "pad_token",
        "pad_token_id",
        "vocab",
    ):
        assert getattr(ours, f"get_{name}")() == getattr(genais, f"get_{name}")(), name
    assert ours.chat_template == genais.chat_template
    assert ours.get_original_chat_template() == genais.get_original_chat_template()


def test_without_temporary_files_it_is_genais(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    folder = demo_pair_path()
    assert read_tokenizer(folder).get_vocab() == openvino_genai.Tokenizer(str(folder)).get_vocab()
    assert "no temporary files" in caplog.text
