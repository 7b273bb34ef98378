"""Fields that change which tokens come: biases, n-grams, the best of several answers, a suffix."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from serve.conftest import Served, serving
from tiers import by_tier

from ovspec.serve.requests.fill_in_middle import FillInMiddle

PROMPT = "Once upon a time, there was a little girl named Lily. She"
BODY = {"model": "demo", "prompt": PROMPT, "max_tokens": 32, "temperature": 0}
SAMPLED = {"temperature": 1, "seed": 7}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {"num_assistant_tokens": 0},
    "drafts": {"num_assistant_tokens": 4, "verify": "dense"},
    "commits": {"num_assistant_tokens": 4, "verify": "commit"},
    "trees": {"num_assistant_tokens": 8, "tree_depth": 3, "branching_factor": 2, "verify": "dense"},
}


def choices(served: Served, **fields: Any) -> list[dict[str, Any]]:
    status, answer = served.post("/v1/completions", {**BODY, **fields})
    assert status == 200, answer
    return answer["choices"]


def tokens_of(served: Served, text: str) -> list[int]:
    return served.post("/tokenize", {"prompt": text, "add_special_tokens": False})[1]["tokens"]


def test_a_bias_excludes_and_forces_tokens(served: Served) -> None:
    used = tokens_of(served, choices(served)[0]["text"])
    excluded = choices(served, logit_bias={str(token): -100 for token in set(used)})[0]["text"]
    assert not set(tokens_of(served, excluded)) & set(used)
    forced = choices(served, logit_bias={str(used[0]): 100}, ignore_eos=True, **SAMPLED)[0]["text"]
    assert tokens_of(served, forced) == [used[0]] * 32
    assert choices(served, logit_bias={}) == choices(served, logit_bias=[]) == choices(served)


@pytest.mark.parametrize("sampled", [{}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    "fields", [{"logit_bias": {"5": 3, "15": 2.5}}, {"no_repeat_ngram_size": 2}], ids=str
)
def test_drafts_change_no_text(served: Served, fields: dict[str, Any], sampled: dict[str, Any]) -> None:
    fields = {**fields, **sampled, "prompt": PROMPT * 2, "ignore_eos": True, "max_tokens": 48}
    texts = {name: choices(served, **fields, **way)[0]["text"] for name, way in WAYS.items()}
    assert set(texts.values()) == {texts["plain"]}, texts


def test_no_ngram_comes_twice(served: Served) -> None:
    fields = {"max_tokens": 200, "ignore_eos": True, "logprobs": 0}
    for size in (2, 3):
        text = choices(served, no_repeat_ngram_size=size, **fields)[0]["logprobs"]["tokens"]
        grams = [tuple(text[at : at + size]) for at in range(len(text) - size + 1)]
        assert len(text) == 200 and len(set(grams)) == len(grams)
    off = [choices(served, **fields, no_repeat_ngram_size=size) for size in (0, None)]
    text = off[0][0]["logprobs"]["tokens"]
    assert off[0] == off[1] and len(set(zip(text, text[1:], text[2:], strict=False))) < len(text) - 2


def test_the_best_answers_have_the_most_probable_tokens(served: Served) -> None:
    fields = {
        **SAMPLED,
        "temperature": 1.5,
        "max_tokens": 12,
        "prompt": [PROMPT, "Tom had a red ball. One day"],
    }
    every = choices(served, **fields, n=5, logprobs=1)
    means = [sum(one["logprobs"]["token_logprobs"]) / len(one["logprobs"]["tokens"]) for one in every]
    for logprobs in (None, 1):
        best = choices(served, **fields, n=2, best_of=5, logprobs=logprobs)
        assert [one["index"] for one in best] == [0, 1, 2, 3]
        for place in (0, 5):
            ranked = sorted(range(place, place + 5), key=means.__getitem__)[:2:-1]
            shown = best[place // 5 * 2 :][:2]
            assert [one["text"] for one in shown] == [every[one]["text"] for one in ranked]
            assert all((one["logprobs"] is None) == (logprobs is None) for one in shown)
    _, answer = served.post("/v1/completions", {**BODY, **fields, "best_of": 3, "ignore_eos": True})
    assert len(answer["choices"]) == 2 and answer["usage"]["completion_tokens"] == 6 * 12
    assert choices(served, best_of=1) == choices(served)


@pytest.mark.parametrize(
    ("fields", "begin"),
    [
        ({"logit_bias": {"4096": 1}}, "logit_bias"),
        ({"logit_bias": {"05": 1}}, "logit_bias"),
        ({"logit_bias": {"Lily": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"5": "1"}}, "logit_bias"),
        ({"logit_bias": [[5, 1]]}, "logit_bias"),
        ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size"),
        ({"no_repeat_ngram_size": 2, "guided_regex": "a"}, "no_repeat_ngram_size"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": 2, "n": 3, **SAMPLED}, "best_of"),
        ({"best_of": 17, **SAMPLED}, "best_of"),
        ({"best_of": 2, "stream": True, **SAMPLED}, "best_of"),
        ({"best_of": 5, "n": 2}, "best_of=5"),
        ({"n": 2}, "n=2"),
        ({"best_of": 16, "prompt": ["a"] * 6, **SAMPLED}, "best_of: 96 answers"),
        ({"n": 16, "prompt": ["a"] * 6, **SAMPLED}, "n: 96 answers"),
        ({"prompt": ["a"] * 96}, "prompt: 96 answers"),
        ({"suffix": " the end."}, "suffix"),
        ({"suffix": " the end.", "echo": True}, "echo"),
    ],
)
def test_what_can_not_be_done_is_refused(served: Served, fields: dict[str, Any], begin: str) -> None:
    status, answer = served.post("/v1/completions", {**BODY, **fields})
    assert status == 400, answer
    message = answer["error"]["message"]
    assert message.startswith(begin) and "\n" not in message
    assert answer["error"]["param"] == re.split("[=:]", begin)[0]


def with_fill_in_middle(folder: Path, copy: Path, framed: bool) -> None:
    """The model of a folder, its last three tokens renamed to Qwen's.

    Args:
        framed: whether the tokenizer puts a token before and behind each text.
    """
    openvino_tokenizers = pytest.importorskip("openvino_tokenizers")
    transformers = pytest.importorskip("transformers")
    import openvino as ov

    names = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("draft", "eagle3", "ovspec_*"))
    path = copy / "tokenizer.json"
    described = json.loads(path.read_text(encoding="utf-8"))
    model, first = described["model"], 4096 - len(names)
    model["vocab"] = {name: token for name, token in model["vocab"].items() if token < first}
    model["merges"] = [pair for pair in model["merges"] if "".join(pair) in model["vocab"]]
    model["vocab"] |= {name: first + place for place, name in enumerate(names)}
    described["added_tokens"] += [
        {**described["added_tokens"][1], "id": first + place, "content": name, "special": False}
        for place, name in enumerate(names)
    ]
    if framed:
        ends = [
            {"SpecialToken": {"id": one["content"], "type_id": 0}} for one in described["added_tokens"][:2]
        ]
        described["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [ends[0], {"Sequence": {"id": "A", "type_id": 0}}, ends[1]],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {
                one["content"]: {"id": one["content"], "ids": [one["id"]], "tokens": [one["content"]]}
                for one in described["added_tokens"][:2]
            },
        }
    path.write_text(json.dumps(described), encoding="utf-8")
    made = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path), eos_token="<|endoftext|>")
    models = openvino_tokenizers.convert_tokenizer(made, with_detokenizer=True)
    for name, one in zip(("tokenizer", "detokenizer"), models, strict=True):
        ov.save_model(one, copy / f"openvino_{name}.xml")


@pytest.mark.parametrize("framed", by_tier([False, True], [True]), ids=["bare", "framed"])
def test_a_suffix_where_the_tokenizer_can_fill_in(demo_ir: Path, tmp_path: Path, framed: bool) -> None:
    with_fill_in_middle(demo_ir, tmp_path / "fim", framed)
    with serving(tmp_path / "fim", "--served-model-name", "demo") as served:
        bare = tokens_of(served, PROMPT)
        whole = served.post("/tokenize", {"prompt": PROMPT})[1]["tokens"]
        assert len(whole) == len(bare) + 2 * framed
        begin = whole[:1] if framed else []
        for prompt in (PROMPT, bare, [*begin, *bare]):
            [filled] = choices(served, prompt=prompt, suffix=" The end.")
            tokens = [*begin, 4093, *bare, 4094, *tokens_of(served, " The end."), 4095]
            assert [filled] == choices(served, prompt=tokens)
        assert choices(served, suffix="") == choices(served)


def test_families_that_can_fill_in() -> None:
    def known(*names: str) -> Any:
        return lambda text: [names.index(text)] if text in names else [90] if len(names) == 1 else [90, 91]

    codestral = FillInMiddle.of(known("[SUFFIX]", "[PREFIX]"))
    assert codestral is not None and codestral.prompt([7, 8], [9]) == [0, 9, 1, 7, 8]
    starcoder = FillInMiddle.of(known("<fim_prefix>", "<fim_middle>", "<fim_suffix>"))
    assert starcoder is not None and starcoder.prompt([7, 8], [9]) == [0, 7, 8, 2, 9, 1]
    assert FillInMiddle.of(known("<unk>")) is None and FillInMiddle.of(known("a", "b")) is None
