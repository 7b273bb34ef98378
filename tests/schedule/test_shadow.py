"""Shadow drafts: proposals that decoding itself judges."""

from __future__ import annotations

from types import SimpleNamespace

from families import family
from openvino_genai import GenerationConfig

from ovspec.drafters import AssistantDrafter, PromptLookupDrafter, SuffixDrafter
from ovspec.drafters.drafter import Drafter, Proposal
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.request import Request
from ovspec.engine.shadow import ShadowDrafts
from ovspec.generation.generation_config import resolve, updated
from ovspec.schedule.schedule import Plan, Schedule, StepOutcome, StepState


class Says(Drafter):
    """Proposes what it is told to."""

    name = "says"
    needs_no_model = True

    def __init__(self, *tokens: int) -> None:
        self.tokens = list(tokens)

    def _draft(self, sequences, counts):
        return {index: Proposal(self.tokens[:count]) for index, count in enumerate(counts)}


def test_a_draft_is_decided_at_its_first_wrong_token_or_its_last() -> None:
    sequence = SimpleNamespace(tokens=[1, 2], draft_states={})
    shadows = ShadowDrafts(Says(3, 4, 5))
    shadows.draft([sequence], 3)
    assert shadows.decided([sequence]) == ()
    sequence.tokens.append(3)
    shadows.draft([sequence], 3)  # the first is still open
    assert shadows.decided([sequence]) == ()
    sequence.tokens.append(7)
    assert shadows.decided([sequence]) == ((3, 1),)
    shadows.draft([sequence], 2)
    sequence.tokens += [3, 4, 9]
    assert shadows.decided([sequence]) == ((2, 2),)
    assert ShadowDrafts(Says()).decided([sequence]) == ()


def test_nothing_offered_is_decided_at_once() -> None:
    sequence, shadows = SimpleNamespace(tokens=[1], draft_states={}), ShadowDrafts(Says())
    shadows.draft([sequence], 4)
    assert shadows.decided([sequence]) == ((0, 0),)


class Watching(Schedule):
    """Plain steps, with shadow drafts beside them or with drafts of the same length."""

    def __init__(self, drafted: int, shadowed: int) -> None:
        self._plan = Plan(drafted, shadow_tokens=shadowed)
        self.outcomes: list[StepOutcome] = []
        self.can_shadow = False

    def plan(self, state: StepState) -> Plan:
        self.can_shadow = state.can_shadow
        return self._plan

    def observe(self, outcome: StepOutcome) -> None:
        self.outcomes.append(outcome)


def run(drafter: Drafter, schedule: Watching) -> list[int]:
    models = family("llama")
    settings = resolve(updated(GenerationConfig(), {"max_new_tokens": 64}), (), has_draft=True)
    engine = LLMEngine(models.target, drafter, "dense", 128)
    return engine.generate([Request("shadowed", models.prompts[0], settings, schedule=schedule)])["shadowed"]


def test_the_engine_shadows_where_the_plan_says_so() -> None:
    watching, plain = Watching(0, 4), Watching(0, 0)
    assert run(PromptLookupDrafter(), watching) == run(SuffixDrafter(), plain)
    decided = [shadow for outcome in watching.outcomes for shadow in outcome.shadows]
    assert watching.can_shadow and len(decided) > 5
    assert all(0 <= accepted <= proposed <= 4 for proposed, accepted in decided)
    assert not any(outcome.shadows for outcome in plain.outcomes)


def test_an_assistant_has_no_shadow() -> None:
    models, watching = family("llama"), Watching(0, 4)
    run(AssistantDrafter(models.draft, models.vocab_size, 64), watching)
    assert not watching.can_shadow
    assert not any(outcome.shadows for outcome in watching.outcomes)
