"""Grammars in EBNF, as xgrammar and llama.cpp write them, in llguidance's form."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance.gbnf_to_lark import ASTNode, RuleNode

# A text, a set of characters, a comment; line breaks between them.
_PARTS = re.compile(r'"(?:\\.|[^"\\\n])*"|\[(?:\\.|[^\]\\\n])*\]|(?P<comment>#[^\n]*)|(?P<line>\s*\n\s*)')
_NEXT_RULE = re.compile(r"[\w-]+\s*::=|\Z")


def lark_of_ebnf(grammar: str) -> str:
    """The same grammar for llguidance.

    Raises:
        ValueError: it can't be read, has no `root`, an unknown rule, a rule that begins with itself, or
            one that no text satisfies.
    """
    from llguidance.gbnf_to_lark import GbnfToLarkError, GrammarParser, gbnf_to_lark

    if "::=" not in grammar:
        raise ValueError('expected a grammar in EBNF, such as root ::= "yes" | "no"; it has no \'::=\'')
    lines = _one_rule_a_line(grammar)
    try:
        rules = GrammarParser().parse(lines)
        _check(rules)
        return str(gbnf_to_lark(lines))
    except (GbnfToLarkError, IndexError) as error:
        raise ValueError(f"the grammar can't be read: {str(error).splitlines()[0]}") from error


def _one_rule_a_line(grammar: str) -> str:
    """The grammar without comments, and with line breaks before rules only."""

    def replaced(found: re.Match[str]) -> str:
        if found["comment"] is not None:
            return ""
        if found["line"] is None:
            return found[0]
        return "\n" if _NEXT_RULE.match(grammar, found.end()) or _is_comment(grammar, found.end()) else " "

    return _PARTS.sub(lambda found: replaced(found), grammar).strip() + "\n"


def _is_comment(grammar: str, at: int) -> bool:
    """Whether nothing but comments stands between a place and the next rule."""
    rest = re.compile(r"(?:#[^\n]*\n\s*)+").match(grammar, at)
    return rest is not None and _NEXT_RULE.match(grammar, rest.end()) is not None


def _check(rules: dict[str, RuleNode]) -> None:
    if "root" not in rules:
        raise ValueError("the grammar has no rule 'root', where it begins")
    nullable: set[str] = set()
    ending: set[str] = set()
    for _ in rules:  # each round adds a rule at least, or there are no more
        nullable |= {name for name, rule in rules.items() if _is_nullable(rule.alternatives, nullable)}
        ending |= {name for name, rule in rules.items() if _ends(rule.alternatives, ending)}
    first = {name: _first(rule.alternatives, nullable) for name, rule in rules.items()}
    for name, rule in rules.items():
        if unknown := sorted(_named(rule.alternatives) - rules.keys()):
            raise ValueError(f"rule {name!r} names {unknown[0]!r}, which is no rule of the grammar")
        if name in _reached(name, first):
            raise ValueError(
                f'rule {name!r} begins with itself (left recursion); write a repetition, as in a ("+" a)*'
            )
        if name not in ending:
            raise ValueError(f"no text satisfies rule {name!r}: it never ends")


def _reached(start: str, first: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    left = [*first[start]]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += first.get(name, ())
    return found


def _named(node: ASTNode) -> set[str]:
    from llguidance.gbnf_to_lark import RuleRefNode

    own = {node.name} if isinstance(node, RuleRefNode) else set()
    return own.union(*(_named(child) for child in node.children()))


def _is_nullable(node: ASTNode, known: set[str]) -> bool:
    from llguidance.gbnf_to_lark import AlternativeNode, LiteralNode, RegexNode, RepetitionNode, RuleRefNode

    if isinstance(node, LiteralNode):
        return not node.value
    if isinstance(node, RegexNode):
        return False
    if isinstance(node, RuleRefNode):
        return node.name in known
    if isinstance(node, RepetitionNode) and node.min_times == 0:
        return True
    found = [_is_nullable(child, known) for child in node.children()]
    return any(found) if isinstance(node, AlternativeNode) else all(found)


def _ends(node: ASTNode, known: set[str]) -> bool:
    """Whether some text satisfies a part of a rule."""
    from llguidance.gbnf_to_lark import AlternativeNode, RepetitionNode, RuleRefNode

    if isinstance(node, RuleRefNode):
        return node.name in known
    if isinstance(node, RepetitionNode) and node.min_times == 0:
        return True
    found = [_ends(child, known) for child in node.children()]
    return any(found) if isinstance(node, AlternativeNode) else all(found)


def _first(node: ASTNode, nullable: set[str]) -> set[str]:
    """The rules that a text of this part may begin with."""
    from llguidance.gbnf_to_lark import RuleRefNode, SequenceNode

    if isinstance(node, RuleRefNode):
        return {node.name}
    found: set[str] = set()
    for child in node.children():
        found |= _first(child, nullable)
        if isinstance(node, SequenceNode) and not _is_nullable(child, nullable):
            break
    return found
