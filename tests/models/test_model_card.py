"""The model card: what it states about the model, and about what sparse verification costs."""

from __future__ import annotations

import pytest

from ovspec_models import ModelSection, OvspecConfig
from ovspec_models.export.model_card import model_card


def card(positions: int | None = 8192, draft: str | None = None) -> str:
    model = ModelSection("org/name", "bloom", "int8", 6, 4, 2, 64, 4096, positions)
    config = OvspecConfig(model=model, draft_model=draft)
    return model_card(config, is_hub_id=True, draft_source=draft and "org/draft", options={})


@pytest.mark.parametrize("draft", [None, "draft"], ids=["alone", "pair"])
def test_card_says_that_sparse_verification_is_lossy(draft: str | None) -> None:
    text = " ".join(card(draft=draft).split())
    assert "`verify=SparseVerify()` is lossy: it approximates the target's output" in text
    assert '`verify="dense"`, the default, is lossless' in text


@pytest.mark.parametrize(
    ("positions", "shown"), [(8192, "| 4,096, 8,192 |"), (None, "| 4,096, no limit stated |")]
)
def test_longest_context(positions: int | None, shown: str) -> None:
    assert f"| vocabulary, longest context {shown}\n" in card(positions)
