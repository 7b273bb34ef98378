"""The name of a special token in a prompt that goes through the chat template."""

from __future__ import annotations

from pathlib import Path

import pytest
from openvino_genai import ChatHistory
from settings import F32

import ovspec
from ovspec.generation.inputs import tokenized

TEXT = "Once<|endoftext|>"
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def num_input_tokens(pipeline: ovspec.LLMPipeline, **options: bool) -> int:
    results = pipeline.generate([TEXT], max_new_tokens=1, **options)
    return int(results.perf_metrics.get_num_input_tokens())


def test_it_stays_text(demo_ir: Path) -> None:
    safe, as_there = (
        ovspec.LLMPipeline(demo_ir, "CPU", special_tokens_in_content=become, **F32)
        for become in (False, True)
    )
    for pipeline in (safe, as_there):
        pipeline.get_tokenizer().set_chat_template(TEMPLATE)
    history = ChatHistory([{"role": "user", "content": TEXT}])
    tokens = safe.chat_prompts.encode(TEXT, apply_chat_template=True)
    assert 0 not in tokens and safe.get_tokenizer().decode(tokens) == TEXT
    assert num_input_tokens(safe) == len(tokens)
    assert safe.generate(TEXT, max_new_tokens=8) == safe.generate(history, max_new_tokens=8).texts[0]
    controls = tokenized(safe.get_tokenizer(), TEXT, special_tokens=False)
    assert 0 in controls
    assert num_input_tokens(as_there) == len(controls) < len(tokens)
    assert as_there.generate(TEXT, max_new_tokens=8) == as_there.generate(history, max_new_tokens=8).texts[0]
    # Who leaves the template out writes control tokens by hand.
    assert num_input_tokens(safe, apply_chat_template=False) == len(controls)


def test_its_type(demo_ir: Path) -> None:
    with pytest.raises(TypeError, match="special_tokens_in_content='no': expected True or False"):
        ovspec.LLMPipeline(demo_ir, "CPU", special_tokens_in_content="no", **F32)
