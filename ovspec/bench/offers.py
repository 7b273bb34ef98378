"""Traces of offers: what every drafter would have proposed at each position of real answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ovspec.bench.prompt_file import BenchPrompt, token_ids
from ovspec.drafters.auto import AutoDrafter
from ovspec.drafters.drafter import Drafter, Proposal
from ovspec.drafters.drafter_group import DrafterGroup
from ovspec.drafters.prompt_lookup import PromptLookupDrafter
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.requests.request import Request
from ovspec.generation.sequence import Sequence as TokenSequence
from ovspec.pipeline.pipeline import LLMPipeline
from ovspec.schedule.schedule import ConstantSchedule, ModelAsk
from ovspec_models.folder.files import replace_file

Tick = Callable[[str], None]
SCHEMA_VERSION = 1
#: Tokens that every drafter is asked for at a position.
LONGEST = 48


@dataclass(frozen=True, slots=True)
class Offer:
    """A proposal of a drafter at a position of an answer.

    Attributes:
        match: length of a lookup's match; 0 of a model.
        tokens: that it proposed.
        accepted: how many of them the answer goes on with.
    """

    match: int
    tokens: int
    accepted: int


@dataclass(frozen=True, slots=True)
class AnswerOffers:
    """The offers behind one answer.

    Attributes:
        offers: by drafter, one for each of the answer's tokens but the first, which the prompt yields.
    """

    category: str
    prompt_tokens: int
    offers: dict[str, list[Offer]]

    @property
    def positions(self) -> int:
        """Tokens behind the first."""
        return len(next(iter(self.offers.values())))


@dataclass(frozen=True, slots=True)
class OfferTrace:
    """The offers behind the answers of a model.

    Attributes:
        source: origin of the trace.
    """

    source: str
    answers: list[AnswerOffers]

    def save(self, path: Path) -> None:
        """Write it atomically."""
        answers = [
            {
                **asdict(answer),
                "offers": {
                    name: [[offer.match, offer.tokens, offer.accepted] for offer in offers]
                    for name, offers in answer.offers.items()
                },
            }
            for answer in self.answers
        ]
        body = {"schema_version": SCHEMA_VERSION, "source": self.source, "answers": answers}
        replace_file(path, (json.dumps(body) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> OfferTrace:
        """Read a file that `save` wrote.

        Raises:
            ValueError: it is none.
        """
        remedy = "record one with `ovspec bench trace --offers`"
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            if body["schema_version"] != SCHEMA_VERSION:
                raise ValueError(f"schema_version is {body['schema_version']}")
            answers = [_answer(found) for found in body["answers"]]
            if not answers:
                raise ValueError("no answers")
            return cls(f"{path.name}: {body['source']}", answers)
        except OSError as error:
            raise ValueError(f"--trace {path}: {error.strerror}; {remedy}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"--trace {path} is no trace of offers ({error!r}); {remedy}") from error


def _answer(found: dict[str, Any]) -> AnswerOffers:
    offers = {
        name: [Offer(*map(int, values)) for values in entries] for name, entries in found["offers"].items()
    }
    counts, prompt_tokens = {len(entries) for entries in offers.values()}, int(found["prompt_tokens"])
    if (
        len(counts) != 1
        or 0 in counts
        or prompt_tokens < 1
        or any(not 0 <= offer.accepted <= offer.tokens for entries in offers.values() for offer in entries)
    ):
        raise ValueError("an answer whose numbers of offers or of their tokens do not fit")
    return AnswerOffers(str(found["category"]), prompt_tokens, offers)


class OfferRecorder(DrafterGroup):
    """Asks several drafters at every position, notes what they propose, and proposes nothing itself.

    Attributes:
        proposals: by drafter, those of every position of the answer so far.
    """

    name = "offers"

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        super().__init__(drafters)
        self.proposals: dict[str, list[tuple[int, Proposal]]] = {}

    def propose(
        self,
        sequences: Sequence[TokenSequence],
        counts: Sequence[int],
        of_model: Sequence[ModelAsk | None] = (),
    ) -> list[Proposal]:
        """Nothing; what each drafter proposes is noted."""
        for drafter in self.drafters:
            (proposal,) = drafter.propose(sequences, counts)
            self.proposals.setdefault(drafter.name, []).append((len(sequences[0].tokens), proposal))
        return [Proposal()]

    def begin(self, sequence: TokenSequence) -> None:
        """Tell every drafter, and forget the answer before."""
        self.proposals = {}
        super().begin(sequence)


def record_offers(
    pipeline: LLMPipeline,
    prompts: Sequence[BenchPrompt],
    max_new_tokens: int,
    source: str,
    tick: Tick = lambda step: None,
) -> OfferTrace:
    """Answer every prompt greedily and plainly, and note what each drafter proposes on the way.

    Args:
        pipeline: with the drafter `auto`, whose drafters are asked.
        source: origin of the trace, stored in it.
        tick: called with a description before each prompt.

    Raises:
        ValueError: as `token_ids`, before any answer, or no answer has a second token.
    """
    drafter = pipeline.engine.engine.drafter
    assert isinstance(drafter, AutoDrafter)
    recorder = OfferRecorder([PromptLookupDrafter(), *drafter.drafters])
    engine = LLMEngine(pipeline.runner, recorder, "dense", max_model_len=pipeline.max_model_len)
    settings = pipeline.settings(do_sample=False, max_new_tokens=max_new_tokens)
    answers, asked = [], token_ids(pipeline.get_tokenizer(), prompts, pipeline.max_model_len)
    for number, (prompt, ids) in enumerate(zip(prompts, asked, strict=True), 1):
        tick(f"prompt {number} of {len(prompts)}")
        request = Request(str(number), ids, settings, schedule=ConstantSchedule(LONGEST))
        ((_, answer),) = engine.generate([request]).items()
        text = [*ids, *answer]
        offers = {
            name: [_offer(text[position:], proposal) for position, proposal in found]
            for name, found in recorder.proposals.items()
        }
        if offers:
            answers.append(AnswerOffers(prompt.category, len(ids), offers))
    if not answers:
        raise ValueError(
            "nothing to record: every answer to these prompts has one token; give prompts with longer ones"
        )
    return OfferTrace(source, answers)


def _offer(following: Sequence[int], proposal: Proposal) -> Offer:
    accepted = 0
    for drafted, token in zip(proposal.tokens, following, strict=False):
        if drafted != token:
            break
        accepted += 1
    return Offer(proposal.match, len(proposal.tokens), accepted)
