"""The configuration of a target's graph that its verification and its drafter need."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from typing import TypeVar

from ovspec.drafters import AssistantDrafter, DrafterChoice, LayerSkip, SparseSelf
from ovspec.drafters.drafter import Drafter
from ovspec.modes.commit_verify import CommitVerify
from ovspec.modes.sparse_prefill import SparsePrefill
from ovspec.modes.verify_mode import VerifyMode, attention_part, sparse_part
from ovspec.operations.attention_config import Attention, AttentionConfig
from ovspec.operations.expert_budgets import ExpertBackend, ExpertConfig, expert_config
from ovspec.operations.ffn_budgets import FfnBackend, FfnConfig, ffn_config
from ovspec.runner.model_runner import ModelRunner
from ovspec_models.folder.sparse_verify import SparseVerify

_Config = TypeVar("_Config", ExpertConfig, FfnConfig)


def routing(
    attention: Attention,
    verify: VerifyMode,
    choice: DrafterChoice | None,
    prefill: SparsePrefill | None = None,
    prompt_rule: SparseVerify | None = None,
) -> AttentionConfig:
    """The configuration of attention.

    Args:
        attention: "native" or "stock".
        verify: how the target verifies.
        choice: who drafts.
        prefill: how prompts are read; `None`: densely.
        prompt_rule: by which sparse prompts select where nothing else does; `None`: the default one.

    Raises:
        ValueError: verification and the drafter ask for different rules of selection, or sparse prompts for
            what can't be had with them.
    """
    check_prefill(prefill, verify)
    if prefill and attention != "native":
        raise ValueError(
            "prefill='sparse' needs attention='native', which runs on a CPU; use that, or prefill='dense'"
        )
    if prefill:
        graph = routing(attention, verify, choice)
        if prompt_rule and not graph.selects:
            graph = sparse_attention(attention, replace(prompt_rule, coverage=None))
        return replace(graph, selects=True, prefill=prefill)
    parts = [sparse for sparse in sparse_passes(verify, choice) if sparse.limits_attention]
    if not parts:
        return AttentionConfig(attention)
    rule = parts[0]
    for name in ("rule", "anchor_layers", "sink_blocks", "local_blocks"):
        mine, other = getattr(rule, name), getattr(parts[-1], name)
        if None not in (mine, other) and mine != other:
            raise ValueError(
                f"{name}={mine} of verify and {other} of the drafter differ: one graph has one rule"
            )
        rule = replace(rule, **{name: other if mine is None else mine})
    if parts[-1].coverage != rule.coverage:
        raise ValueError(
            f"coverage={rule.coverage} of verify and {parts[-1].coverage} of the drafter differ: one graph "
            "has one coverage"
        )
    return sparse_attention(attention, rule)


def sparse_attention(attention: Attention, sparse: SparseVerify) -> AttentionConfig:
    """A graph that selects blocks by the rule of `sparse`; stock operations have one rule, the paper's.

    Raises:
        ValueError: the operations do not know the rule, or it has no anchor layers.
    """
    coverage = 1.0 if sparse.coverage is None else sparse.coverage
    rule = sparse.selection
    if attention == "stock" and sparse.rule is None:
        rule = replace(rule, rule="paper")
    return AttentionConfig(attention, True, sparse.anchor_layers, rule, coverage)


def check_prefill(prefill: SparsePrefill | None, verify: VerifyMode) -> None:
    """Refuse commits behind a sparse prompt.

    Raises:
        ValueError: `verify` commits.
    """
    if prefill is not None and isinstance(verify, CommitVerify):
        raise ValueError(
            "verify='commit' with prefill='sparse': a commit confirms what dense decoding gives, and the "
            "cache of a sparse prompt is not the dense one; use prefill='dense', or verify='dense'"
        )


def expert_routing(
    backend: ExpertBackend, verify: VerifyMode, choice: DrafterChoice | None
) -> ExpertConfig | None:
    """How experts are limited, `None` where they are not.

    Raises:
        ValueError: verification and the drafter ask for different limits.
    """
    asked = [expert_config(backend, sparse) for sparse in sparse_passes(verify, choice)]
    return _agreed("expert budget", "budget", asked)


def ffn_routing(
    backend: FfnBackend | None, verify: VerifyMode, choice: DrafterChoice | None
) -> FfnConfig | None:
    """How channels are limited, `None` where they are not; as `ffn_config`.

    Raises:
        ValueError: verification and the drafter ask for different limits, or the backend can't limit.
    """
    asked = [ffn_config(backend, sparse) for sparse in sparse_passes(verify, choice)]
    return _agreed("ffn density", "density", asked)


def _agreed(what: str, field: str, asked: SequenceOf[_Config | None]) -> _Config | None:
    limits = [config for config in asked if config]
    if limits and limits[-1] != limits[0]:
        first, last = (getattr(config, field) for config in (limits[0], limits[-1]))
        raise ValueError(f"{what} {first} of verify and {last} of the drafter differ: one model has one")
    return limits[0] if limits else None


def limit_anew(
    target: ModelRunner, assistant: Drafter | None, verify: VerifyMode, choice: DrafterChoice | None
) -> None:
    """Apply another setting to the next passes of a target and of its assistant.

    Raises:
        ValueError: its graph was not built for that, or numbers do not fit it; nothing is changed then.
    """
    check_commit(target, verify)
    sparse, graph, before = attention_part(verify), target.attention, target.ffn
    needed = routing(graph.backend, verify, choice, graph.prefill)
    if sparse is not None and not graph.serves(needed):
        found = f"by {graph.rule_text}" if graph.selects else "nothing"
        found += "" if graph.covers or not graph.selects else ", without a coverage"
        raise ValueError(
            f"verify={verify}: this pipeline's graph selects {found}; make another LLMPipeline for it"
        )
    drafts_sparsely = isinstance(assistant, AssistantDrafter) and assistant.runner.attention.selects
    if isinstance(assistant, AssistantDrafter) and drafts_sparsely and sparse is not None:
        assistant.runner.attention.covering(needed.coverage)  # refuses before anything is changed
    experts = expert_routing(target.experts.backend if target.experts else "stock", verify, choice)
    if (limits := ffn_routing(None, verify, choice)) is not None:
        target.set_ffn(limits)
    try:
        if experts is not None:
            target.set_experts(experts)
    except ValueError:
        if limits is not None and before is not None:
            target.set_ffn(before)
        raise
    if sparse is not None:
        target.set_coverage(needed.coverage)
    if isinstance(assistant, AssistantDrafter) and drafts_sparsely:
        assistant.sparse = sparse
        assistant.runner.set_coverage(target.attention.coverage)


def check_mode(target: ModelRunner, verify: VerifyMode) -> None:
    """Refuse a mode for one request that a target can't run beside its others.

    Raises:
        ValueError: its graph was not built for the mode, or limits experts or channels by other numbers.
    """
    check_commit(target, verify)
    sparse, graph = sparse_part(verify), target.attention
    if sparse is None:
        return
    asked = replace(sparse_attention(graph.backend, sparse), prefill=graph.prefill)
    if sparse.limits_attention and (not graph.serves(asked) or asked.coverage != graph.coverage):
        rule = f"by {graph.rule_text}, coverage {graph.coverage:g}"
        found = rule if graph.selects else "nothing"
        raise ValueError(f"verify={verify}: the graph selects {found}; ask for that, or for 'dense'")
    experts, density = target.experts and target.experts.budget, target.ffn and target.ffn.density
    for name, mine, other in (
        ("expert_budget", sparse.expert_budget, experts),
        ("ffn_density", sparse.ffn_density, density),
    ):
        if mine not in (None, other):
            raise ValueError(f"verify: {name}={mine}, but the target runs with {other}; one pass has one")


def sparse_passes(verify: VerifyMode, choice: DrafterChoice | None) -> list[SparseVerify]:
    """The settings of sparse verification and of sparse drafting."""
    drafting = choice.sparse if isinstance(choice, (SparseSelf, LayerSkip)) else None
    return [sparse for sparse in (sparse_part(verify), drafting) if sparse]


def check_commit(target: ModelRunner, verify: VerifyMode) -> None:
    """Refuse commits with sparse prompts or long RoPE, and sparse prompts with long RoPE.

    Raises:
        ValueError: `verify` commits behind sparse prompts, or either is asked of a model with long RoPE.
    """
    check_prefill(target.attention.prefill, verify)
    if target.long_rope and target.attention.prefill:
        raise ValueError(
            f"prefill='sparse': this model's rotary frequencies change at {target.long_rope.limit} tokens "
            "(long RoPE), and prompts are read again there; use prefill='dense'"
        )
    if target.long_rope and isinstance(verify, CommitVerify):
        raise ValueError(
            f"verify='commit': this model's rotary frequencies change at {target.long_rope.limit} tokens "
            "(long RoPE), which a commit can't cross; use verify='dense' or a SparseVerify"
        )
