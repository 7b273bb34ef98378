"""Rules of a grammar in EBNF: those that begin with themselves, and those that no text satisfies.

Imported where a grammar is given only, because llguidance takes time to load.
"""

from __future__ import annotations

from collections.abc import Callable
from graphlib import CycleError, TopologicalSorter

from llguidance.gbnf_to_lark import (
    AlternativeNode,
    ASTNode,
    LiteralNode,
    RegexNode,
    RepetitionNode,
    RuleNode,
    RuleRefNode,
    SequenceNode,
)

from ovspec_models.folder.shown import shown

# Over all rules, from the first to the last and back; who orders rules against it would get any number.
_MOST_SWEEPS = 100


def check_rules(rules: dict[str, RuleNode]) -> None:
    """Refuse rules that can't be followed.

    Raises:
        ValueError: there is no `root`, a rule names an unknown one, begins with itself, or never ends.
        RecursionError: they are nested too deeply.
    """
    if "root" not in rules:
        raise ValueError("the grammar has no rule 'root', where it begins")
    for name, rule in rules.items():
        if unknown := sorted(_named(rule) - rules.keys()):
            raise ValueError(f"rule {shown(name)} names {shown(unknown[0])}, which is no rule of the grammar")
    nullable = _made_of(rules, _is_nothing)
    try:
        TopologicalSorter({name: _first(rule, nullable) for name, rule in rules.items()}).prepare()
    except CycleError as error:
        raise ValueError(
            f"rule {shown(error.args[1][0])} begins with itself (left recursion); write a repetition, as in "
            'a ("+" a)*'
        ) from None
    ending = _made_of(rules, lambda leaf: True)
    if endless := next((name for name in rules if name not in ending), None):
        raise ValueError(f"no text satisfies rule {shown(endless)}: it never ends")


def _named(node: ASTNode) -> set[str]:
    own = {node.name} if isinstance(node, RuleRefNode) else set[str]()
    return own.union(*(_named(child) for child in node.children()))


def _made_of(rules: dict[str, RuleNode], fits: Callable[[ASTNode], bool]) -> set[str]:
    """The rules that texts and sets of characters which fit are enough for."""
    found: set[str] = set()
    left = list(rules.values())
    for _ in range(_MOST_SWEEPS):
        missing = []
        for rule in left:
            if _is_made_of(rule, found, fits):
                found.add(rule.name)
            else:
                missing.append(rule)
        if len(missing) == len(left):
            return found
        left = missing[::-1]
    raise ValueError("the grammar's rules depend on one another in long chains; write them in their order")


def _is_made_of(node: ASTNode, found: set[str], fits: Callable[[ASTNode], bool]) -> bool:
    if isinstance(node, RuleRefNode):
        return node.name in found
    if isinstance(node, (LiteralNode, RegexNode)):
        return fits(node)
    if isinstance(node, RepetitionNode) and node.min_times == 0:
        return True
    parts = (_is_made_of(child, found, fits) for child in node.children())
    return any(parts) if isinstance(node, AlternativeNode) else all(parts)


def _first(node: ASTNode, nullable: set[str]) -> set[str]:
    """The rules that a text of this part may begin with."""
    if isinstance(node, RuleRefNode):
        return {node.name}
    found: set[str] = set()
    for child in node.children():
        found |= _first(child, nullable)
        if isinstance(node, SequenceNode) and not _is_made_of(child, nullable, _is_nothing):
            break
    return found


def _is_nothing(leaf: ASTNode) -> bool:
    return isinstance(leaf, LiteralNode) and not leaf.value
