"""A body of a completion as requests to the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ovspec.engine.requests.request import Request
from ovspec.serve.chat_requests import ChatRequest
from ovspec.serve.output.choice import Choice, Delta
from ovspec.serve.output.message_parser import PartsStream
from ovspec.serve.output.objects import ChatObjects, CompletionObjects, Json, Objects, metrics_of, usage_of
from ovspec.serve.output.prompt_logprobs import PromptText
from ovspec.serve.requests.api_error import ApiError
from ovspec.serve.requests.bodies import AnswerBody, ChatBody, CompletionBody, GenerationBody
from ovspec.serve.served_model import ServedModel
from ovspec.serve.structure import grammar_of


@dataclass(slots=True)
class Call:
    """One HTTP request for answers.

    Attributes:
        requests: for the engine, one per choice, or per prompt whose choices are beams.
        choices: the answers, those of a request together.
        verify: how drafts are verified, in a word.
        num_spec_tokens: draft tokens of a step, at most.
        prompts: one per choice; those of a prompt share it.
    """

    body: GenerationBody
    objects: Objects
    requests: list[Request]
    choices: list[Choice]
    num_prompt_tokens: int
    verify: str
    num_spec_tokens: int
    prompts: list[PromptText]

    @classmethod
    def of(
        cls,
        body: GenerationBody,
        model: ServedModel,
        arrived: float,
        chat_objects: Callable[[str, int | None, Callable[[], PartsStream]], Objects] = ChatObjects,
    ) -> Call:
        """Check a body against the model, and make its requests. It tokenizes: call it in a thread.

        Args:
            arrived: `time.perf_counter()` when the body began to come.
            chat_objects: makes the objects of the answer to a chat.

        Raises:
            ApiError: 400 or 404; it names the field.
        """
        called = model.check_name(body.model)
        _check_combinations(body)
        logprobs = _logprobs(body)
        objects: Objects
        visual = None
        if isinstance(body, ChatBody):
            field = "messages"
            chat = ChatRequest.of(body, model)
            prompts, grammar, visual = [chat.prompt], chat.grammar, chat.visual
            max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
            objects = chat_objects(called, logprobs, chat.parts)
        else:
            assert isinstance(body, CompletionBody)
            prompts, field = _prompts(body, model), "prompt"
            grammar = grammar_of(body)
            max_tokens = 16 if body.max_tokens is None else body.max_tokens  # OpenAI's default
            objects = CompletionObjects(called, logprobs)
        if isinstance(objects, (ChatObjects, CompletionObjects)):
            objects.fields["system_fingerprint"] = model.fingerprint
        both = isinstance(body, ChatBody) and body.max_tokens is None
        for prompt in prompts:
            limit_field = "max_completion_tokens" if both else "max_tokens"
            model.check_length(len(prompt), max_tokens, field, limit_field)
        _check_min_tokens(body, max_tokens)
        settings = model.settings(body, max_tokens, grammar)
        count, counted = body.num_candidates, body.count_field
        if settings.beams is not None:
            count = 1  # a request answers with all of them
        elif count > 1 and not settings.sampling.do_sample:
            message = f"{counted}={count}: greedy answers are all the same; set temperature above 0"
            raise ApiError(400, message, counted)
        name, verify = model.verify_mode(body.verify)
        asked = _prompt_logprobs(body, logprobs)
        # Without a seed, prompts that are the same get different answers too.
        apart = count if body.seed is None else 0
        requests = [
            Request(
                f"{objects.id}-{place}-{index}",
                prompt,
                settings,
                verify,
                0 if logprobs is None and count > body.n else logprobs,
                arrived,
                index=place * apart + index,
                blocks_read=body.return_blocks_read,
                # The answer to a chat shows them once.
                prompt_logprobs=None if isinstance(body, ChatBody) and index else asked,
                visual=visual,
            )
            for place, prompt in enumerate(prompts)
            for index in range(count)
        ]
        stops = (settings.stop_strings, settings.include_stop_str_in_output, body.return_token_origins)
        # The text of a completion goes on behind its prompt; that of a message begins anew.
        echo = isinstance(body, CompletionBody) and body.echo
        texts = [text for one in prompts for text in [PromptText(model.token_text, one)] * body.num_choices]
        of_requests = [request for request in requests for _ in range(body.num_choices // count)]
        choices = [
            Choice(
                model.token_text,
                *stops,
                logprobs=logprobs,
                min_tokens=settings.sampling.min_new_tokens,
                prompt=() if isinstance(body, ChatBody) else request.prompt_token_ids,
                echo=text if echo else None,
            )
            for request, text in zip(of_requests, texts, strict=True)
        ]
        if settings.beams is not None and settings.stop_strings:
            for request, choice in zip(of_requests, choices, strict=True):
                request.detokenizer = choice.detokenizer
        total = sum(len(prompt) for prompt in prompts)
        drafts = settings.num_assistant_tokens
        return cls(body, objects, requests, choices, total, name, drafts, texts)

    @property
    def usage(self) -> Json:
        """Tokens of the call."""
        return usage_of(self.num_prompt_tokens, self.choices, self.body.num_choices)

    @property
    def metrics(self) -> Json:
        """What was drafted and read for the call."""
        return metrics_of([choice.metrics for choice in self.choices], self.verify, self.num_spec_tokens)

    def whole(self, deltas: Sequence[Delta]) -> Json:
        """The answer without streaming; `deltas` hold each choice from begin to end."""
        best = self._best()
        choices = [self.choices[place] for place in best]
        answer = self.objects.whole(choices, [deltas[place] for place in best], self.usage, self.metrics)
        if (top := self.body.prompt_logprobs) is not None:
            places: Sequence[Json] = answer["choices"] if isinstance(self.body, CompletionBody) else [answer]
            for entry, place in zip(places, best, strict=False):
                shown = self.prompts[place].of_vllm(self.choices[place].prompt_logprobs, top)
                entry["prompt_logprobs"] = shown
        return answer

    def _best(self) -> list[int]:
        """Places of the choices that are shown: of each prompt's those with the most probable tokens."""
        count, shown = self.body.num_choices, self.body.n
        if count == shown:
            return list(range(len(self.choices)))
        of_prompts = [range(first, first + count) for first in range(0, len(self.choices), count)]
        by_logprob = [
            sorted(of_prompt, key=lambda place: -self.choices[place].mean_logprob) for of_prompt in of_prompts
        ]
        return [place for ranked in by_logprob for place in ranked[:shown]]


def num_answers(body: AnswerBody) -> int:
    """Requests that are made of a body."""
    prompt = body.prompt if isinstance(body, CompletionBody) else ""
    several = not isinstance(prompt, str) and bool(prompt) and not isinstance(prompt[0], int)
    count = 1 if isinstance(body, GenerationBody) and body.use_beam_search else body.num_candidates
    return count * (len(prompt) if several else 1)


def _check_combinations(body: GenerationBody) -> None:
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options: needs stream=true; leave it out", "stream_options")
    if body.prompt_logprobs is not None and body.stream:
        raise ApiError(400, "prompt_logprobs: is not given in streams; set stream=false", "prompt_logprobs")
    if body.return_blocks_read and not body.stream:
        raise ApiError(400, "return_blocks_read: needs stream=true; leave it out", "return_blocks_read")
    if isinstance(body, CompletionBody):
        _check_completion(body)
    _check_beams(body)
    if not isinstance(body, ChatBody):
        return
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs: needs logprobs=true", "top_logprobs")
    if None not in (body.max_tokens, body.max_completion_tokens):
        message = "max_tokens: is the old name of max_completion_tokens; give one of them"
        raise ApiError(400, message, "max_tokens")


def _check_min_tokens(body: GenerationBody, max_tokens: int | None) -> None:
    if max_tokens is not None and body.min_tokens > max_tokens:
        message = f"min_tokens={body.min_tokens}: the answer may have {max_tokens} tokens; lower it"
        raise ApiError(400, message, "min_tokens", "invalid_value")


def _check_completion(body: CompletionBody) -> None:
    if body.num_candidates < body.n:
        raise ApiError(400, f"best_of={body.best_of}: is below n={body.n}; raise it", "best_of")
    if body.num_candidates > body.n and body.stream:
        raise ApiError(400, "best_of: the best answers are known at the end; set stream=false", "best_of")
    if body.suffix and body.echo:
        raise ApiError(400, "echo: a prompt with a suffix is no text to begin with; leave one out", "echo")


def _check_beams(body: GenerationBody) -> None:
    if not body.use_beam_search:
        if body.length_penalty != 1.0:
            message = f"length_penalty={body.length_penalty:g}: needs use_beam_search=true; leave it out"
            raise ApiError(400, message, "length_penalty")
        return
    if body.num_candidates == 1:
        many = "n or best_of" if isinstance(body, CompletionBody) else "n"
        message = f"use_beam_search: {many} says how many beams are searched; set it above 1"
        raise ApiError(400, message, "use_beam_search")
    if body.temperature:
        message = f"temperature={body.temperature:g}: use_beam_search draws nothing; leave it out"
        raise ApiError(400, message, "temperature")
    if body.stream:
        message = "use_beam_search: the best answers are known at the end; set stream=false"
        raise ApiError(400, message, "use_beam_search")


def _logprobs(body: GenerationBody) -> int | None:
    if isinstance(body, ChatBody):
        return body.top_logprobs or 0 if body.logprobs else None
    assert isinstance(body, CompletionBody)
    return body.logprobs


def _prompt_logprobs(body: GenerationBody, logprobs: int | None) -> int | None:
    """How many alternatives to give for the tokens of the prompt; `None`: no log probabilities."""
    echoed = logprobs if isinstance(body, CompletionBody) and body.echo else None
    asked = [number for number in (body.prompt_logprobs, echoed) if number is not None]
    return max(asked, default=None)


def _prompts(body: CompletionBody, model: ServedModel) -> list[list[int]]:
    """The prompts of a completion as token ids.

    Raises:
        ApiError: 400, none, or a token outside the vocabulary.
    """
    given = body.prompt
    entries: Sequence[str | Sequence[int]]
    if isinstance(given, str):
        entries = [given]
    elif given and isinstance(given[0], int):
        entries = [[token for token in given if isinstance(token, int)]]
    else:
        entries = [entry for entry in given if not isinstance(entry, int)]
    if not entries:
        raise ApiError(400, "prompt: the list is empty; send a prompt", "prompt")
    if body.suffix:
        prompts = [model.with_suffix(one, body.suffix) for one in entries]
    else:
        prompts = [model.tokens_of(one) if isinstance(one, str) else list(one) for one in entries]
    for prompt in prompts:
        model.check_tokens(prompt, "prompt")
    return prompts
