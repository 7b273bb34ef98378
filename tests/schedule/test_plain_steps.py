"""Plain decoding under the schedule `auto`: most of its steps skip the controller, none is lost."""

from __future__ import annotations

from schedule.virtual_machine import MAX_DRAFT, Machine, World

from ovspec.schedule.controller import AutoSchedule
from ovspec.schedule.schedule import StepOutcome, StepState


class Counting(AutoSchedule):
    """Counts the steps that it looks at."""

    learned = 0

    def _account(self, *arguments: object) -> None:
        self.learned += 1
        super()._account(*arguments)  # type: ignore[arg-type]


def hopeless(pass_duration: float) -> World:
    machine = Machine(
        lambda rows, _, __: pass_duration * (0.9 + 0.1 * rows), lambda _: 40.0, noise=0.0, hiccup=0.0
    )
    return World(machine, lambda _: 0.0, lookup=5.0)


def test_most_plain_steps_skip_the_controller() -> None:
    schedule, world = Counting(MAX_DRAFT), hopeless(1e3)
    world.run(schedule, 400, seed=1)
    schedule.learned = 0
    steps = len(world.run(schedule, 600, seed=2).drafts)
    assert schedule.learned <= 0.3 * steps


def resting_schedule() -> tuple[Counting, StepState]:
    """One that has found drafting hopeless, and skips the controller."""
    schedule, world = Counting(MAX_DRAFT), hopeless(1e3)
    world.run(schedule, 900, seed=1)
    state = StepState((900,), (100,), MAX_DRAFT, can_shadow=True)
    return schedule, state


def test_a_sequence_that_joins_or_leaves_ends_the_rest() -> None:
    schedule, state = resting_schedule()
    for sequences in (1, 3, 2, 2, 5, 1, 4, 1):
        before = schedule.learned
        state = state._replace(contexts=(900,) * sequences, remaining=(100,) * sequences)
        joined = sequences != len(schedule._state.contexts)
        plan = schedule.plan(state)
        asked = (plan.num_assistant_tokens,) * sequences
        nothing = (0,) * sequences
        schedule.observe(StepOutcome(plan, state.contexts, asked, nothing, 0.0, 1010.0))
        assert schedule.learned == before + 1 or not joined
