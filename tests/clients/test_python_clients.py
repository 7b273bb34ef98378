"""Clients in Python, each against a running server: text, streams, tools, typed answers.

The demo's model says what it likes; what is tested is the form, which the server makes.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Literal

import pytest
from clients.conftest import MODEL
from pydantic import BaseModel, ConfigDict, Field

PROMPT = "Once upon a time, there was a little girl named Lily."


class Trip(BaseModel):
    """A trip to a city."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Rome", "Oslo"]
    days: int = Field(ge=1, le=9)


# Of vLLM's interface, in place of what a client asks for.
TRIP_FORM = {"structured_outputs": {"json": Trip.model_json_schema()}, "response_format": None}


def check(trip: Any) -> None:
    """It is a trip, as an object or as the arguments of a call."""
    made = trip if isinstance(trip, Trip) else Trip.model_validate(trip)
    assert made.city in ("Rome", "Oslo") and 1 <= made.days <= 9


class City(BaseModel):
    """A city."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Rome", "Oslo"]


def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def test_openai(base_url: str) -> None:
    from openai import OpenAI, pydantic_function_tool

    client = OpenAI(base_url=base_url, api_key="none")
    messages: Any = [{"role": "user", "content": PROMPT}]
    asked: dict[str, Any] = {"model": MODEL, "messages": messages, "max_tokens": 60}
    text = client.chat.completions.create(**asked).choices[0].message.content
    chunks = client.chat.completions.create(**asked, stream=True)
    assert text == "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    check(client.chat.completions.parse(**asked, response_format=Trip).choices[0].message.parsed)
    tools = [pydantic_function_tool(Trip)]
    called = client.chat.completions.parse(
        **asked, tools=tools, tool_choice="required", parallel_tool_calls=False
    )
    check(called.choices[0].message.tool_calls[0].function.parsed_arguments)
    response = client.responses.parse(model=MODEL, input=PROMPT, max_output_tokens=60, text_format=Trip)
    check(response.output_parsed)
    answer = client.responses.create(model=MODEL, input=PROMPT, max_output_tokens=60)
    with client.responses.stream(model=MODEL, input=PROMPT, max_output_tokens=60) as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert answer.output_text == text == "".join(pieces)
    assert client.models.retrieve(MODEL).id == MODEL


def test_langchain(base_url: str) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    llm = ChatOpenAI(model=MODEL, base_url=base_url, api_key="none", max_tokens=60)
    text = llm.invoke(PROMPT).content
    assert text and text == "".join(chunk.content for chunk in llm.stream(PROMPT))
    asked = tool(weather, args_schema=City)
    bound = llm.bind_tools([asked], tool_choice="required", strict=True, parallel_tool_calls=False)
    answer = bound.invoke(PROMPT)
    [call] = answer.tool_calls
    assert call["name"] == "weather" and call["args"]["city"] in ("Rome", "Oslo")
    result = ToolMessage(weather(**call["args"]), tool_call_id=call["id"])
    assert llm.bind_tools([asked]).invoke([HumanMessage(PROMPT), answer, result])
    for method in ("json_schema", "function_calling"):
        check(llm.with_structured_output(Trip, method=method, strict=True).invoke(PROMPT))
    # Its JSON mode asks for JSON of any form: the server is asked for the one that is wanted.
    typed = llm.model_copy(update={"extra_body": TRIP_FORM})
    check(typed.with_structured_output(Trip, method="json_mode").invoke(PROMPT))
    answers = ChatOpenAI(
        model=MODEL, base_url=base_url, api_key="none", max_tokens=60, use_responses_api=True
    )
    assert answers.invoke(PROMPT).text == text
    check(answers.with_structured_output(Trip, strict=True).invoke(PROMPT))


def test_litellm(base_url: str) -> None:
    import litellm

    asked = {"model": f"openai/{MODEL}", "api_base": base_url, "api_key": "none", "max_tokens": 60}
    asked["messages"] = [{"role": "user", "content": PROMPT}]
    text = litellm.completion(**asked).choices[0].message.content
    pieces = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(**asked, stream=True)]
    assert text and text == "".join(pieces)
    typed = litellm.completion(**asked, response_format=Trip).choices[0].message.content
    check(Trip.model_validate_json(typed))
    function = {"name": "trip", "parameters": Trip.model_json_schema()}
    tools = [{"type": "function", "function": function}]
    message = litellm.completion(**asked, tools=tools, tool_choice="required").choices[0].message
    check(Trip.model_validate_json(message.tool_calls[0].function.arguments))


@pytest.mark.parametrize("mode", ["TOOLS", "JSON", "JSON_SCHEMA"])
def test_instructor(base_url: str, mode: str) -> None:
    import instructor
    from openai import OpenAI

    client = instructor.from_openai(OpenAI(base_url=base_url, api_key="none"), mode=instructor.Mode[mode])
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": 80,
    }
    if mode != "JSON":
        check(client.chat.completions.create(**asked, response_model=Trip, max_retries=0))
        return
    # As in langchain.
    check(client.chat.completions.create(**asked, response_model=Trip, max_retries=0, extra_body=TRIP_FORM))


def test_llama_index(base_url: str) -> None:
    from llama_index.core.llms import ChatMessage
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike

    llm = OpenAILike(
        model=MODEL,
        api_base=base_url,
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        temperature=0,
        max_tokens=60,
    )
    text = llm.chat([ChatMessage(role="user", content=PROMPT)]).message.content
    assert (
        text and text == list(llm.stream_chat([ChatMessage(role="user", content=PROMPT)]))[-1].message.content
    )
    assert llm.complete(PROMPT).text
    answer = llm.chat_with_tools(
        [FunctionTool.from_defaults(weather, fn_schema=City)], PROMPT, tool_required=True
    )
    [call] = llm.get_tool_calls_from_response(answer)
    assert call.tool_name == "weather" and call.tool_kwargs["city"] in ("Rome", "Oslo")


def test_pydantic_ai(base_url: str) -> None:
    from pydantic_ai import Agent, NativeOutput, ToolOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider, limit = OpenAIProvider(base_url=base_url, api_key="none"), {"max_tokens": 60}
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        model = kind(MODEL, provider=provider)

        def ask(output: Any, model: Any = model) -> Any:
            agent = Agent(model, output_type=output, model_settings=limit)
            return asyncio.run(agent.run(PROMPT)).output

        assert isinstance(ask(str), str)
        check(ask(ToolOutput(Trip)))
        check(ask(NativeOutput(Trip)))


def test_lm_eval(base_url: str, demo_ir: Path, tmp_path: Path) -> None:
    import lm_eval
    from lm_eval.tasks import TaskManager

    questions = tmp_path / "questions.jsonl"
    questions.write_text(
        '{"question": "Lily has a red ball. It is", "choices": [" red", " seven"], "answer": 0}\n' * 3,
        encoding="utf-8",
    )
    common = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {questions}}}}}\ntest_split: test\n"
    choice = "output_type: multiple_choice\ndoc_to_choice: choices\ndoc_to_target: answer\n"
    free = 'output_type: generate_until\ndoc_to_target: " red"\n'
    free += 'generation_kwargs: {until: ["."], max_gen_toks: 8}\n'
    metric = "metric_list: [{metric: %s, aggregation: mean, higher_is_better: true}]\n"
    for name, rest in (("choosing", choice + metric % "acc"), ("writing", free + metric % "exact_match")):
        text = f"task: {name}\n{common}doc_to_text: question\n{rest}"
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    tasks = TaskManager(include_path=str(tmp_path), include_defaults=False)
    arguments = f"model={MODEL},base_url={base_url}/completions,tokenizer={demo_ir},max_length=512"
    found = lm_eval.simple_evaluate(
        "local-completions", model_args=arguments, tasks=["choosing", "writing"], task_manager=tasks
    )
    assert found["results"]["choosing"]["acc,none"] == 1.0
    found = lm_eval.simple_evaluate(
        "local-chat-completions",
        model_args=arguments.replace("/completions", "/chat/completions"),
        tasks=["writing"],
        task_manager=tasks,
        apply_chat_template=True,
    )
    assert "exact_match,none" in found["results"]["writing"]
