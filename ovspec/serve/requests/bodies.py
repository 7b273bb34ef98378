"""Bodies of requests: which fields there are, of which types and ranges."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, WithJsonSchema

from ovspec.sampling.sampling import MAX_SEED
from ovspec.serve.requests.answer_forms import ResponseFormat, StructuredOutputs
from ovspec.serve.requests.messages import MAX_MESSAGES, Message, have_pictures
from ovspec.serve.requests.strict_body import (
    Flag,
    Off,
    OffExcept,
    OffFalse,
    OffList,
    StrictBody,
    Text,
    TokenIds,
    Whole,
    WordOr,
)
from ovspec.serve.requests.tool_fields import MAX_TOOLS, NamedTool, Tool, restricts_calls

MAX_CHOICES = 16
MAX_STOP_STRINGS = 16
# Together: every step looks for all of them in what is new.
MAX_STOP_CHARACTERS = 2**14
MAX_STOP_TOKENS = 1024
MAX_TOP_LOGPROBS = 20
MAX_BIASES = 1024


def _one_or_many(value: object) -> object:
    """A text is a list of one; what is empty stops nothing."""
    value = [value] if isinstance(value, str) else value
    return [one for one in value if one != ""] if isinstance(value, list) else value


def _none_below_zero(value: object) -> object:
    """Clients say with a seed below 0 that they have none."""
    return None if isinstance(value, (int, float)) and value < 0 and value % 1 == 0 else value


def _all_tokens(value: object) -> object:
    """vLLM's number for all tokens is -1."""
    return 0 if value == -1 and not isinstance(value, bool) else value


def _short_together(value: list[str]) -> list[str]:
    if (length := sum(map(len, value))) > MAX_STOP_CHARACTERS:
        raise ValueError(f"{length} characters together; expected at most {MAX_STOP_CHARACTERS}")
    return value


def _no_biases(value: object) -> object:
    """Clients send an empty list for none."""
    return {} if value == [] else value


Biases = Annotated[
    dict[
        Annotated[str, Field(pattern=r"^(0|[1-9]\d{0,9})$")],
        Annotated[float, Field(ge=-100, le=100, strict=True)],
    ],
    Field(max_length=MAX_BIASES),
    BeforeValidator(_no_biases),
]
StopStrings = Annotated[
    list[Text],
    Field(max_length=MAX_STOP_STRINGS),
    AfterValidator(_short_together),
    BeforeValidator(_one_or_many),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}, "maxItems": MAX_STOP_STRINGS},
            ]
        }
    ),
]


class StreamOptions(StrictBody):
    """What a stream carries beside the answer."""

    include_obfuscation: OffFalse = None
    include_usage: Flag = False


class AnswerBody(StrictBody):
    """Fields of every body that asks for answers.

    Names and meanings are OpenAI's; those that it does not have are vLLM's where vLLM has them. The last
    group is ovspec's.
    """

    model: Text | None = None
    temperature: float | None = Field(None, ge=0, le=2, strict=True)
    top_p: float | None = Field(None, gt=0, le=1, strict=True)
    presence_penalty: float = Field(0.0, ge=-2, le=2, strict=True)
    frequency_penalty: float = Field(0.0, ge=-2, le=2, strict=True)
    logit_bias: Biases | None = None
    seed: Annotated[Whole | None, BeforeValidator(_none_below_zero)] = Field(None, le=MAX_SEED)
    stop: StopStrings | None = None
    stream: Flag = False
    user: Text | None = None
    service_tier: Annotated[None, OffExcept("auto", "default")] = None
    store: OffFalse = None
    moderation: Off = None
    # Of OpenAI's cache, and whom it bills or bans: nothing of an answer depends on them.
    prompt_cache_key: Text | None = None
    prompt_cache_retention: Text | None = None
    prompt_cache_options: dict[str, Any] | None = None
    safety_identifier: Text | None = None

    top_k: Annotated[Whole | None, BeforeValidator(_all_tokens)] = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, lt=1, strict=True)
    repetition_penalty: float | None = Field(None, gt=0, strict=True)
    no_repeat_ngram_size: Whole | None = Field(None, ge=0)
    min_tokens: Whole = Field(0, ge=0)
    stop_token_ids: Annotated[TokenIds, Field(max_length=MAX_STOP_TOKENS)] | None = None
    ignore_eos: Flag = False
    include_stop_str_in_output: Flag = False

    num_assistant_tokens: Whole | None = Field(None, ge=0)
    num_assistant_tokens_schedule: Literal["constant", "auto"] | None = None
    tree_depth: Whole | None = Field(None, ge=0)
    branching_factor: Whole | None = Field(None, ge=1)
    acceptance_rule: Literal["coupled", "block"] | None = None
    verify: Literal["dense", "sparse", "commit"] | None = None

    @property
    def num_candidates(self) -> int:
        """Answers that are made for each prompt, or beams that are searched."""
        return 1

    @property
    def num_choices(self) -> int:
        """Answers to each prompt that the engine gives: of beams those that are shown."""
        return self.num_candidates

    @property
    def count_field(self) -> str:
        """The field that says how many answers are made."""
        return "prompt"

    @property
    def has_grammar(self) -> bool:
        """Whether it says what form its answers have."""
        return False

    @property
    def has_pictures(self) -> bool:
        """Whether its messages have pictures."""
        return False


class GenerationBody(AnswerBody):
    """Fields that both kinds of completion have."""

    n: Whole = Field(1, ge=1, le=MAX_CHOICES)
    max_tokens: Whole | None = Field(None, ge=0)
    stream_options: StreamOptions | None = None
    metadata: OffList = None

    use_beam_search: Flag = False
    length_penalty: float = Field(1.0, ge=-100, le=100, strict=True)
    prompt_logprobs: Whole | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    return_token_origins: Flag = False
    return_blocks_read: Flag = False

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | Text | None = None
    guided_regex: Text | None = None
    guided_choice: list[Text] | None = None
    guided_grammar: Text | None = None
    guided_whitespace_pattern: Text | None = None

    @property
    def num_candidates(self) -> int:
        """As of `AnswerBody`; the best `n` are shown."""
        return self.n

    @property
    def num_choices(self) -> int:
        """As of `AnswerBody`."""
        return self.n if self.use_beam_search else self.num_candidates

    @property
    def count_field(self) -> str:
        """As of `AnswerBody`."""
        if self.num_candidates == 1:
            return super().count_field
        return "best_of" if self.num_candidates > self.n else "n"

    @property
    def has_grammar(self) -> bool:
        """As of `AnswerBody`."""
        forms = ("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice")
        return any(getattr(self, name) is not None for name in (*forms, "guided_grammar"))


def _kind_of_prompt(given: object) -> str:
    if not isinstance(given, list):
        return "[text]"
    if given and isinstance(given[0], list):
        return "[lists of tokens]"
    return "[tokens]" if given and not isinstance(given[0], str) else "[texts]"


Prompt = Annotated[
    Annotated[Text, Tag("[text]")]
    | Annotated[TokenIds, Tag("[tokens]")]
    | Annotated[list[Text], Field(fail_fast=True), Tag("[texts]")]
    | Annotated[list[TokenIds], Field(fail_fast=True), Tag("[lists of tokens]")],
    Discriminator(_kind_of_prompt),
]


class CompletionBody(GenerationBody):
    """The body of `/v1/completions`."""

    prompt: Prompt
    logprobs: Whole | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    best_of: Whole | None = Field(None, ge=1, le=MAX_CHOICES)
    echo: Flag = False
    suffix: Text | None = None

    @property
    def num_candidates(self) -> int:
        """As of `GenerationBody`."""
        return self.n if self.best_of is None else self.best_of


class ChatBody(GenerationBody):
    """The body of `/v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    max_completion_tokens: Whole | None = Field(None, ge=0)
    special_tokens_in_content: Flag = False
    logprobs: Flag | None = None
    top_logprobs: Whole | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: WordOr[Literal["none", "auto", "required"], NamedTool] | None = None
    parallel_tool_calls: Flag | None = None
    functions: OffList = None
    function_call: Annotated[None, OffExcept("none")] = None
    audio: Off = None
    modalities: Annotated[None, OffExcept(["text"])] = None
    prediction: Off = None
    reasoning_effort: Text | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: Flag = True
    continue_final_message: Flag = False
    verbosity: Annotated[None, OffExcept("medium")] = None
    web_search_options: Off = None

    @property
    def has_grammar(self) -> bool:
        """The form may be that of calls too."""
        return super().has_grammar or self.restricts_calls

    @property
    def has_pictures(self) -> bool:
        """As of `AnswerBody`."""
        return have_pictures(self.messages)

    @property
    def restricts_calls(self) -> bool:
        """As of `tool_fields.restricts_calls`."""
        functions = [tool.function for tool in self.tools or ()]
        return restricts_calls(functions, self.parallel_tool_calls, self.tool_choice)


class TokenizeBody(StrictBody):
    """The body of `/tokenize`, with vLLM's names: a prompt, or messages with what chats have beside."""

    model: Text | None = None
    prompt: Text | None = None
    add_special_tokens: Flag | None = None
    messages: Annotated[list[Message], Field(fail_fast=True, max_length=MAX_MESSAGES)] | None = Field(
        None, min_length=1
    )
    special_tokens_in_content: Flag = False
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: Flag = True
    continue_final_message: Flag = False

    def chat(self) -> ChatBody:
        """The chat that its messages are."""
        given = self.model_fields_set & ChatBody.model_fields.keys()
        return ChatBody(**{name: getattr(self, name) for name in given})

    @property
    def misplaced(self) -> str | None:
        """A field that is set and has no meaning beside the prompt, or the messages."""
        if self.messages is not None:
            return "add_special_tokens" if self.add_special_tokens else None  # the template writes them
        known = ChatBody.model_fields
        of_chats = self.model_fields_set & known.keys() - {"model"}
        return next((name for name in sorted(of_chats) if getattr(self, name) != known[name].default), None)

    @property
    def has_pictures(self) -> bool:
        """Whether its messages have pictures."""
        return have_pictures(self.messages or ())


class DetokenizeBody(StrictBody):
    """The body of `/detokenize`."""

    model: Text | None = None
    tokens: TokenIds
