"""The part of a generation configuration that is about drafts, checked."""

from __future__ import annotations

import openvino_genai

from ovspec.errors import InvalidValueError
from ovspec.modes.row_limits import MAX_NUM_ASSISTANT_TOKENS
from ovspec.schedule.schedule import SCHEDULES

DEFAULT_NUM_ASSISTANT_TOKENS = 5
# A confidence threshold leaves the length of a draft open; this limits the rows of a pass.
CONFIDENT_NUM_ASSISTANT_TOKENS = 16
ACCEPTANCE_RULES = ("coupled", "block")


def acceptance_threshold_of(config: openvino_genai.GenerationConfig) -> float:
    """The ratio from which a draft token is accepted.

    Raises:
        InvalidValueError: it is not allowed, or contradicts another option.
    """
    threshold = config.acceptance_threshold
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not 0 < threshold <= 1:
        raise InvalidValueError(
            f"acceptance_threshold={threshold!r}: expected a ratio above 0 and up to 1, which is exact"
        )
    return float(threshold)


def acceptance_rule_of(config: openvino_genai.GenerationConfig) -> str:
    """ "coupled" or "block".

    Raises:
        InvalidValueError: it is not allowed, or contradicts another option.
    """
    rule, depth, threshold = config.acceptance_rule, config.tree_depth, config.acceptance_threshold
    if rule == "coupled":
        return "coupled"
    refused = (
        (rule not in ACCEPTANCE_RULES, f": expected one of {', '.join(map(repr, ACCEPTANCE_RULES))}"),
        (not config.do_sample, " is a rule for sampling: set do_sample, or leave it out"),
        (depth > 0, f" has no rule for trees: leave it out, or tree_depth={depth}"),
        (threshold < 1, f" contradicts acceptance_threshold={threshold:g}: leave one of them out"),
    )
    if reason := next((reason for applies, reason in refused if applies), ""):
        raise InvalidValueError(f"acceptance_rule={rule!r}{reason}")
    return str(rule)


def schedule_of(config: openvino_genai.GenerationConfig) -> str:
    """How much is drafted: "constant" or "auto".

    Raises:
        InvalidValueError: it is not allowed, or contradicts another option.
    """
    schedule = config.num_assistant_tokens_schedule
    if schedule is not None and schedule not in SCHEDULES:
        raise InvalidValueError(
            f"num_assistant_tokens_schedule={schedule!r}: expected one of {', '.join(map(repr, SCHEDULES))}"
        )
    chosen = config.num_assistant_tokens is not None or config.assistant_confidence_threshold > 0
    return schedule or ("constant" if chosen else "auto")


def tree_of(config: openvino_genai.GenerationConfig) -> tuple[int, int]:
    """`branching_factor` and `tree_depth`, within the rules of openvino_genai."""
    width, depth, tokens = config.branching_factor, config.tree_depth, config.num_assistant_tokens
    if not depth:
        if width != 1:
            raise InvalidValueError(
                f"branching_factor={width} has no effect on chains: give tree_depth, the levels of a tree"
            )
        return 1, 0
    if not 1 <= width <= MAX_NUM_ASSISTANT_TOKENS:
        raise InvalidValueError(
            f"branching_factor={width}: expected 1 to {MAX_NUM_ASSISTANT_TOKENS} children of a node"
        )
    if tokens is None or tokens < depth:
        raise InvalidValueError(
            f"num_assistant_tokens={tokens}: expected at least tree_depth={depth}, one node a level"
        )
    if config.acceptance_threshold < 1.0:
        raise InvalidValueError(
            f"acceptance_threshold={config.acceptance_threshold:g} has no rule for trees: leave it out, or "
            f"tree_depth={depth}"
        )
    return int(width), int(depth)


def assistant_tokens_of(config: openvino_genai.GenerationConfig, schedule: str) -> tuple[int, float]:
    """`num_assistant_tokens` and `assistant_confidence_threshold`.

    Raises:
        InvalidValueError: it is not allowed, or contradicts another option.
    """
    tokens, threshold = config.num_assistant_tokens, config.assistant_confidence_threshold
    if not 0 <= threshold < 1:
        raise InvalidValueError(
            f"assistant_confidence_threshold={threshold:g}: expected a probability of 0 to below 1"
        )
    if threshold > 0:
        return CONFIDENT_NUM_ASSISTANT_TOKENS, float(threshold)
    if tokens is None:
        return MAX_NUM_ASSISTANT_TOKENS if schedule == "auto" else DEFAULT_NUM_ASSISTANT_TOKENS, 0.0
    if tokens > MAX_NUM_ASSISTANT_TOKENS:
        raise InvalidValueError(f"num_assistant_tokens={tokens}: expected at most {MAX_NUM_ASSISTANT_TOKENS}")
    return int(tokens), 0.0
