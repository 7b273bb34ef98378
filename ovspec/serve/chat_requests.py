"""A chat's body as a prompt, a grammar, and what reads the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ovspec.cache.visual_prompt import VisualPrompt
from ovspec.generation.grammars.grammar import Grammar
from ovspec.serve.output.call_forms import Schemas
from ovspec.serve.output.harmony import HarmonyStream, begun_answer
from ovspec.serve.output.message_parser import MessageParser, MessageStream, PartsStream
from ovspec.serve.requests.api_error import ApiError
from ovspec.serve.requests.bodies import ChatBody
from ovspec.serve.served_model import ServedModel
from ovspec.serve.structure import grammar_of
from ovspec.serve.tools import ToolUse

if TYPE_CHECKING:
    from openai_harmony import HarmonyEncoding


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a body of a chat asks for.

    Attributes:
        prompt: token ids.
        grammar: that the answer follows; `None`: none.
        tools: that may be called: the schemas of their arguments, by their names.
        reasons: whether the model's template knows reasoning.
        starts_in_reasoning: whether the prompt ends inside of it.
        harmony: the format of its channels; `None`: it has none.
        begun: as of `HarmonyStream`.
        visual: what pictures bring to the prompt; `None`: it has none.
    """

    prompt: list[int]
    grammar: Grammar | None
    tools: Schemas
    reasons: bool
    starts_in_reasoning: bool
    harmony: HarmonyEncoding | None = None
    begun: list[int] | None = None
    visual: VisualPrompt | None = None

    def parts(self) -> PartsStream:
        """What reads one answer."""
        if self.harmony is not None:
            return HarmonyStream(self.harmony, self.tools, self.begun)
        return MessageStream(MessageParser(self.tools, self.reasons, self.starts_in_reasoning))

    @classmethod
    def of(cls, body: ChatBody, model: ServedModel) -> ChatRequest:
        """Make it; the body's text becomes tokens.

        Raises:
            ApiError: 400; it names the field.
        """
        template = str(model.tokenizer.chat_template)
        use = ToolUse.of(body, template, grammar_of(body))
        continues = _continues(body)
        text = model.chat_text(
            body.messages,
            body.special_tokens_in_content,
            use.tools,
            _context(body),
            body.add_generation_prompt,
            continues,
        )
        inside = text.rstrip().endswith("<think>") and use.is_free
        made = model.prompt(text, body.messages)
        # The text of a grammar has no channels.
        harmony = model.harmony if use.grammar is None else None
        if harmony is not None and body.stop:
            raise ApiError(400, "stop: is not looked for in the channels of this model; leave it out", "stop")
        begun = None
        if harmony is not None and (continues or body.add_generation_prompt):
            begun = begun_answer(harmony, made.tokens)  # else the last answer is one that has ended
        reasons = "think>" in template
        return cls(made.tokens, use.grammar, use.schemas, reasons, inside, harmony, begun, made.visual)


def _context(body: ChatBody) -> dict[str, Any]:
    effort = {} if body.reasoning_effort is None else {"reasoning_effort": body.reasoning_effort}
    return {**effort, **(body.chat_template_kwargs or {})}


def _continues(body: ChatBody) -> bool:
    if not body.continue_final_message:
        return False
    field = "continue_final_message"
    if "add_generation_prompt" in body.model_fields_set and body.add_generation_prompt:
        raise ApiError(400, f"{field}: contradicts add_generation_prompt; leave one of them out", field)
    if body.messages[-1].role != "assistant" or not body.messages[-1].text.strip():
        raise ApiError(400, f"{field}: the last message is no text of the assistant's; append one", field)
    return True
