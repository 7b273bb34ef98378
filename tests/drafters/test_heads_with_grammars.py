"""Whatever head drafts, and however drafts are verified, an answer has the form that was asked for."""

from __future__ import annotations

import functools
import json
import string
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import openvino as ov
import openvino_genai
import pytest
from drafters.eagle3_models import VOCAB, pair
from drafters.test_eagle3 import MODES, SAMPLING, TREE, answer, settings_of, target
from drafters.test_heads import KINDS, models_of
from jsonschema import validate
from openvino_genai import StructuredOutputConfig as Form
from openvino_tokenizers import convert_tokenizer
from tiers import by_tier
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ovspec.engine.llm_engine import LLMEngine
from ovspec.generation.grammars.grammars import Grammars
from ovspec.generation.raw_metrics import RawPerfMetrics
from ovspec.modes.verify_mode import VerifyMode
from ovspec_models.folder.sparse_verify import SparseVerify

END = VOCAB - 1
# A space is Ġ to tokenizers of bytes. Pieces make several tokens of some texts, and one of others.
LETTERS = string.ascii_lowercase + string.digits + '{}[]":,.-Ġ'
PIECES = ['":', '",', '"}', "Ġ[", "Ġ{", "tr", "ue", "true", "nu", "ll", "null", "name", "me", "na"]
FORMS: tuple[dict[str, Any], ...] = (
    {
        "type": "object",
        "properties": {
            "the name of it": {"type": "string", "pattern": "^[a-z ]{3,9}$"},
            "other": {
                "type": "array",
                "items": {"enum": ["a", 12, True, None]},
                "minItems": 2,
                "maxItems": 4,
            },
        },
        "required": ["the name of it", "other"],
        "additionalProperties": False,
    },
    {
        "type": "array",
        "items": {"type": "integer", "minimum": -9, "maximum": 120},
        "minItems": 3,
        "maxItems": 6,
    },
)
WAYS: dict[str, VerifyMode] = {**MODES, "sparse": SparseVerify(L0=16, rho=0.1)}


@functools.cache
def grammars() -> Grammars:
    """Those of the tiny target, whose tokens are letters, a few pieces, and the end."""
    names = [*LETTERS, *PIECES]
    cuts = [(piece[:cut], piece[cut:]) for piece in sorted(PIECES, key=len) for cut in range(1, len(piece))]
    merges = [cut for cut in cuts if {*cut} <= {*names}]
    assert len(names) == END
    made = Tokenizer(models.BPE({name: token for token, name in enumerate(names)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    ready = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>")
    with tempfile.TemporaryDirectory() as folder:
        both = convert_tokenizer(ready, with_detokenizer=True)
        for name, model in zip(("tokenizer", "detokenizer"), both, strict=True):
            ov.save_model(model, Path(folder) / f"openvino_{name}.xml")
        return Grammars(openvino_genai.Tokenizer(folder), VOCAB, [END])


def answers(
    engine: LLMEngine, count: int, form: Form, **options: Any
) -> tuple[list[str], list[RawPerfMetrics]]:
    """The texts behind the first prompts; each parses, and is as the schema says."""
    asked = {"structured_output_config": form, "eos_token_id": END, "max_new_tokens": 90}
    found, metrics = answer(engine, pair().prompts[:count], settings_of(**asked, **options))
    return [
        "".join([*LETTERS, *PIECES, ""][token] for token in text).replace("Ġ", " ") for text in found
    ], metrics


@functools.cache
def plain(sampled: bool) -> list[list[str]]:
    engine = LLMEngine(target("llama", (), "stock"), None, "dense", 32, grammars=grammars())
    forms = (Form(json_schema=json.dumps(schema)) for schema in FORMS)
    return [answers(engine, 4, form, **SAMPLING if sampled else {})[0] for form in forms]


@pytest.mark.parametrize(
    ("kind", "tree", "sampled", "way", "together"),
    by_tier(
        [
            (kind, tree, sampled, way, 4 if (tree + sampled + (way == "dense")) % 2 else 1)
            for kind, tree, sampled, way in product(KINDS, (False, True), (False, True), WAYS)
        ],
        [("dflash", False, False, "dense", 4)],
    ),
)
def test_answers_have_the_form(kind: str, tree: bool, sampled: bool, way: str, together: int) -> None:
    runner, drafter = models_of(kind)
    engine = LLMEngine(runner, drafter, WAYS[way], 32, grammars=grammars())
    for schema, expected in zip(FORMS, plain(sampled), strict=True):
        form, options = Form(json_schema=json.dumps(schema)), {**SAMPLING} if sampled else {}
        texts, metrics = answers(engine, together, form, **options, **TREE if tree else {})
        for text in texts:
            validate(json.loads(text), schema)
        assert way == "sparse" or texts == expected[:together]
        # The other prompts may be within the budget, which needs no commit.
        assert (sum(metrics[0].provisional_lengths) > 0) == (way == "commit")
        for raw in metrics:
            assert sum(raw.draft_durations) > 0
            # No head drafts so many tokens: the grammar does.
            assert schema["type"] == "array" or max(raw.accepted_lengths) > 9
    assert runner.blocks.usage == 0.0
