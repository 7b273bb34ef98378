"""Grammars in EBNF, as xgrammar and llama.cpp write them, in llguidance's form."""

from __future__ import annotations

import re

from ovspec.sampling.constraint import first_line

# A text, a set of characters (what lacks its end has a line at most), a comment, white space.
_PARTS = re.compile(r'"(?:\\.|[^"\\\n])*"?|\[(?:\\.|[^\]\\\n])*\]?|(?P<comment>#[^\n]*)|(?P<space>\s+)')
_NEXT_RULE = re.compile(r"[\w-]+\s*::=|\Z")


def lark_of_ebnf(grammar: str) -> str:
    """The same grammar for llguidance.

    Raises:
        ValueError: it can't be read, has no `root`, an unknown rule, a rule that begins with itself, or
            one that no text satisfies.
    """
    from llguidance.gbnf_to_lark import GrammarParser, gbnf_to_lark

    from ovspec.generation.grammars.ebnf_rules import check_rules

    if "::=" not in grammar:
        raise ValueError('expected a grammar in EBNF, such as root ::= "yes" | "no"; it has no \'::=\'')
    lines = _one_rule_a_line(grammar)
    try:
        check_rules(GrammarParser().parse(lines))
        return str(gbnf_to_lark(lines))
    except ValueError:
        raise
    except RecursionError:
        raise ValueError("the grammar is nested too deeply; make it flatter") from None
    except Exception as error:  # that is what gbnf_to_lark raises, with no class of its own
        raise ValueError(f"the grammar can't be read: {first_line(str(error))}") from error


def _one_rule_a_line(grammar: str) -> str:
    """The grammar without comments, and with line breaks before rules only."""
    bare = _PARTS.sub(lambda part: "" if part["comment"] else part[0], grammar)

    def joined(part: re.Match[str]) -> str:
        if part["space"] is None or "\n" not in part[0]:
            return part[0]
        return "\n" if _NEXT_RULE.match(bare, part.end()) else " "

    return _PARTS.sub(joined, bare).strip() + "\n"
