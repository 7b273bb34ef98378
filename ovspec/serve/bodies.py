"""Bodies of requests: which fields there are, of which types and ranges."""

from __future__ import annotations

import json
from collections import Counter
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core.core_schema import CoreSchema, no_info_before_validator_function

from ovspec.sampling.sampling import MAX_SEED
from ovspec.serve.api_error import ApiError

Body = TypeVar("Body", bound="StrictBody")

MAX_CHOICES = 16
MAX_STOP_STRINGS = 16
# Together: every step looks for all of them in what is new.
MAX_STOP_CHARACTERS = 2**14
MAX_STOP_TOKENS = 1024
MAX_MESSAGES = 4096
MAX_PARTS = 4096
MAX_TOP_LOGPROBS = 20


class _Off:
    """A field of OpenAI's that is not supported, with the values that switch it off."""

    def __init__(self, *values: object) -> None:
        self._values = values

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_before_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Any:
        return {"enum": [None, *self._values]}

    def _check(self, value: object) -> None:
        if value is not None and not any(value == off and type(value) is type(off) for off in self._values):
            raise ValueError("is not supported; leave it out")


def _whole_characters(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"is no valid text ({error.reason}); send whole characters") from None
    return value


def _one_or_many(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _short_together(value: list[str]) -> list[str]:
    if (length := sum(map(len, value))) > MAX_STOP_CHARACTERS:
        raise ValueError(f"{length} characters together; expected at most {MAX_STOP_CHARACTERS}")
    return value


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose names are all different."""
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{twice[:80]!r} is given twice")
    return made


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON's")


Off = Annotated[None, _Off()]
OffList = Annotated[None, _Off([], {})]
OffFalse = Annotated[None, _Off(False)]
Text = Annotated[str, Field(strict=True), AfterValidator(_whole_characters)]
StopString = Annotated[Text, Field(min_length=1)]
StopStrings = Annotated[
    list[StopString],
    Field(max_length=MAX_STOP_STRINGS),
    AfterValidator(_short_together),
    BeforeValidator(_one_or_many),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {
                    "type": "array",
                    "items": {"type": "string", "minLength": 1},
                    "maxItems": MAX_STOP_STRINGS,
                },
            ]
        }
    ),
]
Flag = Annotated[bool, Field(strict=True)]
TokenId = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
# A client is told the first fault only; to collect all of them takes 2 kB for each entry of a list.
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]


class StrictBody(BaseModel):
    """A JSON object whose unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _one_unknown(cls, value: Any) -> Any:
        # Of many unknown fields one is enough, for the same reason.
        if not isinstance(value, dict) or len(value) <= len(cls.model_fields):
            return value
        extra = next(name for name in value if name not in cls.model_fields)
        return {name: value[name] for name in (*cls.model_fields, extra) if name in value}

    @classmethod
    def parse(cls: type[Body], data: bytes) -> Body:
        """Read a body.

        Raises:
            ApiError: 400; it names the first field that is wrong.
        """
        try:
            value = json.loads(data.decode(), object_pairs_hook=_each_once, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            reason = str(error).partition("; use sys.")[0]  # Python's remedy for an integer of many digits
            raise ApiError(400, f"the body is no JSON ({reason}); send a JSON object in UTF-8") from None
        if not isinstance(value, dict):
            raise ApiError(400, f"the body is {_shown(value)}; send a JSON object")
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise _named(error, cls) from None


def _named(error: ValidationError, kind: type[StrictBody]) -> ApiError:
    """The first fault of a body, by the name of its field."""
    fault = error.errors(include_url=False)[0]
    # A list of alternatives (text or tokens) names the alternative in the place; the user knows the field.
    field = _part(fault["loc"][0]) if fault["loc"] else "body"
    place = ".".join(_part(part) for part in fault["loc"] if not _names_a_type(part))
    message = str(fault["msg"]).removeprefix("Value error, ")
    shown = _shown(fault["input"])
    if fault["type"] == "extra_forbidden":
        known = (
            ", ".join(sorted(kind.model_fields)) if len(fault["loc"]) == 1 else "those of OpenAI's interface"
        )
        return ApiError(400, f"{place}: there is no such field; known are {known}", field, "unknown_field")
    if fault["type"] == "missing":
        return ApiError(400, f"{place}: is missing; give it", field, "missing_field")
    return ApiError(400, f"{place}={shown}: {message[:1].lower()}{message[1:]}", field, "invalid_value")


def _part(part: int | str) -> str:
    """Part of a place in a body, short and without line breaks."""
    name = str(part)[:80]
    return name if name.isprintable() else json.dumps(name)[1:-1]


def _shown(value: object) -> str:
    """A value of JSON in short."""
    if isinstance(value, (dict, list)):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    shown = json.dumps(value[:80] if isinstance(value, str) else value, default=str)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


def _names_a_type(part: int | str) -> bool:
    return (isinstance(part, str) and any(mark in part for mark in "[]-")) or part in ("str", "list")


class StreamOptions(StrictBody):
    """What a stream carries beside the answer."""

    include_usage: Flag = False


class GenerationBody(StrictBody):
    """Fields that both kinds of completion have.

    Names and meanings are OpenAI's; those that it does not have are vLLM's where vLLM has them. The last
    group is ovspec's.
    """

    model: Text | None = None
    n: int = Field(1, ge=1, le=MAX_CHOICES, strict=True)
    max_tokens: int | None = Field(None, ge=1, strict=True)
    temperature: float | None = Field(None, ge=0, le=2, strict=True)
    top_p: float | None = Field(None, gt=0, le=1, strict=True)
    presence_penalty: float = Field(0.0, ge=-2, le=2, strict=True)
    frequency_penalty: float = Field(0.0, ge=-2, le=2, strict=True)
    seed: int | None = Field(None, ge=0, le=MAX_SEED, strict=True)
    stop: StopStrings | None = None
    stream: Flag = False
    stream_options: StreamOptions | None = None
    user: Text | None = None

    top_k: int | None = Field(None, ge=0, strict=True)
    min_p: float | None = Field(None, ge=0, lt=1, strict=True)
    repetition_penalty: float | None = Field(None, gt=0, strict=True)
    min_tokens: int = Field(0, ge=0, strict=True)
    stop_token_ids: Annotated[TokenIds, Field(max_length=MAX_STOP_TOKENS)] | None = None
    ignore_eos: Flag = False
    include_stop_str_in_output: Flag = False

    num_assistant_tokens: int | None = Field(None, ge=0, strict=True)
    num_assistant_tokens_schedule: Literal["constant", "heuristic", "auto"] | None = None
    tree_depth: int | None = Field(None, ge=0, strict=True)
    branching_factor: int | None = Field(None, ge=1, strict=True)
    acceptance_rule: Literal["coupled", "block"] | None = None
    verify: Literal["dense", "sparse", "commit"] | None = None
    return_token_origins: Flag = False
    return_blocks_read: Flag = False

    logit_bias: OffList = None
    response_format: Annotated[None, _Off({"type": "text"})] = None
    metadata: OffList = None
    store: OffFalse = None
    service_tier: Annotated[None, _Off("auto", "default")] = None


class CompletionBody(GenerationBody):
    """The body of `/v1/completions`."""

    prompt: (
        Text
        | TokenIds
        | Annotated[list[Text], Field(fail_fast=True)]
        | Annotated[list[TokenIds], Field(fail_fast=True)]
    )
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS, strict=True)
    best_of: Annotated[None, _Off(1)] = None
    echo: OffFalse = None
    suffix: Annotated[None, _Off("")] = None


class TextPart(StrictBody):
    """A part of a message's content."""

    type: Literal["text"]
    text: Text


class Message(StrictBody):
    """A message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: Text | Annotated[list[TextPart], Field(fail_fast=True, max_length=MAX_PARTS)]
    name: Off = None
    refusal: Off = None
    annotations: OffList = None
    audio: Off = None
    tool_calls: OffList = None
    tool_call_id: Off = None
    function_call: Off = None

    @property
    def text(self) -> str:
        """The content as text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatBody(GenerationBody):
    """The body of `/v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    max_completion_tokens: int | None = Field(None, ge=1, strict=True)
    special_tokens_in_content: Flag = False
    logprobs: Flag | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS, strict=True)
    tools: OffList = None
    tool_choice: Annotated[None, _Off("none")] = None
    parallel_tool_calls: Off = None
    functions: OffList = None
    function_call: Annotated[None, _Off("none")] = None
    audio: Off = None
    modalities: Annotated[None, _Off(["text"])] = None
    prediction: Off = None
    reasoning_effort: Off = None
    verbosity: Off = None
    web_search_options: Off = None


class TokenizeBody(StrictBody):
    """The body of `/tokenize`, with vLLM's names: a prompt, or the messages of a chat."""

    model: Text | None = None
    prompt: Text | None = None
    messages: Annotated[list[Message], Field(fail_fast=True, max_length=MAX_MESSAGES)] | None = Field(
        None, min_length=1
    )
    special_tokens_in_content: Flag = False
    add_special_tokens: Flag = True


class DetokenizeBody(StrictBody):
    """The body of `/detokenize`."""

    model: Text | None = None
    tokens: TokenIds
