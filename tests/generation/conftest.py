"""Tokenizers of several kinds."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

import openvino_genai
import pytest
from made_once import MakeOnce

from ovspec.generation.token_text import GraphText, TokenText

pytest.importorskip("transformers")
from generation.small_tokenizers import KINDS, write


class Known(NamedTuple):
    """A tokenizer, and the two ways to decode with it."""

    folder: Path
    tokenizer: openvino_genai.Tokenizer
    text: TokenText
    graph: GraphText

    def encode(self, text: str) -> list[int]:
        if not text:
            return []
        return self.tokenizer.encode(text, add_special_tokens=False).input_ids.data.reshape(-1).tolist()

    def decode(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens)) if tokens else ""


Open: TypeAlias = Callable[[str], Known]


@pytest.fixture(scope="session")
def of_kind(make_once: MakeOnce) -> Open:
    """A tokenizer by its kind."""

    @cache
    def opened(kind: str) -> Known:
        folder = make_once(f"tokenizer {kind}", lambda path: write(kind, path))
        tokenizer = openvino_genai.Tokenizer(str(folder))
        return Known(folder, tokenizer, TokenText(tokenizer), GraphText(tokenizer))

    return opened


@pytest.fixture(scope="session", params=list(KINDS))
def known(request: pytest.FixtureRequest, of_kind: Open) -> Known:
    """Each of the tokenizers."""
    return of_kind(request.param)
