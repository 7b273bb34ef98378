"""Values of the fields of bodies."""

from __future__ import annotations

from typing import Any

_SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
_TAG = {"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": "</a>"}
_TOOL = {"type": "function", "function": {"name": "f", "parameters": _SCHEMA}}
_CALL = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
_FLAT_TOOL = {"type": "function", "name": "f", "parameters": _SCHEMA, "strict": True}
# A field that has other values on this path.
OF_RESPONSES: dict[str, tuple[Any, ...]] = {
    "tools": ([_FLAT_TOOL], [_FLAT_TOOL, _FLAT_TOOL], [{"type": "web_search"}], [], None),
    "tool_choice": ("none", "auto", "required", {"type": "function", "name": "f"}),
    "stream_options": ({}, {"include_obfuscation": False}, None),
}

# Values that the server takes, or nearly takes; the names of other fields come from the bodies themselves.
GOOD: dict[str, tuple[Any, ...]] = {
    "model": (None, "demo"),
    "n": (1, 1, 2, 3, 16),
    "max_tokens": (0, 1, 2, 3, 4, 4, 64, 8000),
    "max_completion_tokens": (1, 2, 3, 100),
    "temperature": (0, 0, 1, 0.7, 1e-3, 2, 1e-40),
    "top_p": (1, 0.9, 0.1, 1e-9),
    "presence_penalty": (0, 1, -2, 2, 0.5),
    "frequency_penalty": (0, 1, -2, 2, 0.5),
    "seed": (0, 1, 42, 2**63, 2**64 - 1),
    "stop": ("a", " ", ".", ["a", "b"], ["\n", " the"], ["x" * 1000], [], None),
    "stream": (False, True),
    "stream_options": ({"include_usage": True}, {}, None),
    "user": ("me",),
    "top_k": (0, 1, 2, 50, 4096, 10**6),
    "min_p": (0, 0.05, 0.99),
    "repetition_penalty": (1, 1.1, 0.5, 1e-3, 100),
    "min_tokens": (0, 1, 2, 4),
    "stop_token_ids": ([], [0], [1, 2, 3], [4095], [4096], list(range(200))),
    "ignore_eos": (False, True),
    "include_stop_str_in_output": (False, True),
    "num_assistant_tokens": (0, 1, 3, 8, 63),
    "num_assistant_tokens_schedule": ("constant", "auto"),
    "tree_depth": (0, 1, 2, 4),
    "branching_factor": (1, 2, 4),
    "acceptance_rule": ("coupled", "block"),
    "verify": ("dense", "sparse", "commit"),
    "return_token_origins": (False, True),
    "return_blocks_read": (False, True),
    "add_special_tokens": (False, True),
    "prompt_logprobs": (0, 1, 5, 20),
    "echo": (False, True),
    "best_of": (None, 1, 3),
    "use_beam_search": (None, False, True),
    "length_penalty": (1.0, 0, -2),
    "suffix": (None, "", " the end"),
    "logit_bias": ({}, {"5": 100}, {"4095": -100, "0": 1.5}, {"4096": 1}, {"-1": 1}, []),
    "no_repeat_ngram_size": (0, 1, 2, 5, 2**63, 2**64),
    "response_format": (
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": _SCHEMA, "strict": True}},
        {"type": "json_schema"},
        {"type": "structural_tag", "format": {"type": "sequence", "elements": [_TAG]}},
        {"type": "structural_tag", "structures": [{**_TAG, "schema": _SCHEMA}], "triggers": ["<a>"]},
    ),
    "structured_outputs": ({"json": _SCHEMA}, {"regex": "[a-c]+"}, {"choice": ["a", "bc"]}, {}),
    "guided_json": (_SCHEMA, {}, {"enum": []}, '{"type": "array"}'),
    "guided_regex": ("[0-9]{3}", "(", ""),
    "guided_choice": (["red", "blue"], ["a"], []),
    "guided_grammar": ('root ::= "a" | "b" root', 'root ::= root "a"', "x"),
    "tools": ([_TOOL], [_TOOL, _TOOL], [], None),
    "tool_choice": ("none", "auto", "required", {"type": "function", "function": {"name": "f"}}),
    "parallel_tool_calls": (False, True),
    "reasoning_effort": ("low",),
    "chat_template_kwargs": ({}, {"enable_thinking": False}, {"messages": 1}),
    "add_generation_prompt": (False, True),
    "continue_final_message": (False, True),
    "special_tokens_in_content": (False, True),
    "input": (
        "Once",
        "",
        [],
        [{"role": "user", "content": [{"type": "input_text", "text": "Once"}]}],
        [_CALL, {"type": "function_call_output", "call_id": "a", "output": "1"}],
        [{"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "a"}]}],
        [_CALL, {**_CALL, "arguments": "{"}],
        [{"type": "item_reference", "id": "x"}, 5],
    ),
    "instructions": ("Be kind.", ""),
    "max_output_tokens": (0, 1, 3, 9000),
    "text": (
        {"format": {"type": "json_schema", "name": "a", "schema": _SCHEMA}},
        {"format": {"type": "json_object", "name": "a"}},
        {"format": {"type": "json_schema"}},
        {},
    ),
    "reasoning": ({"effort": "low", "summary": "auto"}, {}),
    "include": (["message.output_text.logprobs"], ["x"], []),
    "metadata": ({}, {"a": "b"}),
    "tokens": ([], [1, 2, 3], [4095], [4096], [0] * 50, list(range(0, 4096, 17))),
}
