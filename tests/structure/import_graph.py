"""Reads the imports of Python packages from their source: which module imports which."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

Arrows: TypeAlias = dict[str, set[str]]  # importer -> imported


def read_imports(roots: Mapping[str, Path]) -> tuple[Arrows, Arrows]:
    """Read every module of the packages in `roots` (import name -> folder).

    Returns:
        Arrows between these modules, and arrows from them to the top-level names of everything else.
        Imports inside functions and under `TYPE_CHECKING` count. A name imported from a package is an arrow
        to the package unless it is a module of it. The packages above an imported module are no arrows.
    """
    files = {
        module: path
        for package, folder in roots.items()
        for path in sorted(folder.rglob("*.py"))
        for module in [_module_name(package, path.relative_to(folder))]
    }
    inside: Arrows = {module: set() for module in files}
    outside: Arrows = {module: set() for module in files}
    for module, path in files.items():
        for target in _targets(module, path):
            known = _longest_known(target, files)
            if known is None:
                outside[module].add(target.split(".")[0])
            elif known != module:
                inside[module].add(known)
    return inside, outside


def merge(arrows: Arrows, name_of: Mapping[str, str]) -> Arrows:
    """Arrows between groups of modules; `name_of` gives the group of each module."""
    merged: Arrows = {group: set() for group in name_of.values()}
    for module, targets in arrows.items():
        merged[name_of[module]] |= {name_of[target] for target in targets} - {name_of[module]}
    return merged


def circles(arrows: Arrows) -> list[list[str]]:
    """Groups of nodes that reach each other (strongly connected components of two nodes or more), sorted."""
    reach = {node: _reachable(node, arrows) for node in arrows}
    found = {tuple(sorted(other for other in reach[node] if node in reach[other])) for node in arrows}
    return sorted(list(group) for group in found if group)


def longest_chains(arrows: Arrows, name_of: Mapping[str, str]) -> dict[str, list[str]]:
    """For each group the longest chain of its modules that import each other, packages' `__init__` aside.

    Args:
        arrows: without circles.
    """
    chains: dict[str, list[str]] = {}

    def chain(module: str) -> list[str]:
        if module not in chains:
            group = name_of[module]
            below = (chain(to) for to in sorted(arrows[module]) if name_of[to] == group and to != group)
            chains[module] = [module, *max(below, key=len, default=[])]
        return chains[module]

    longest: dict[str, list[str]] = {}
    for module, group in name_of.items():
        if module != group:
            longest[group] = max(longest.get(group, []), chain(module), key=len)
    return longest


def _reachable(start: str, arrows: Arrows) -> set[str]:
    """Nodes at the end of a path of one arrow or more."""
    seen: set[str] = set()
    waiting = list(arrows[start])
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += arrows[node]
    return seen


def _module_name(package: str, path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join((package, *(parts[:-1] if parts[-1] == "__init__" else parts)))


def _targets(module: str, path: Path) -> Iterator[str]:
    """Dotted names that a file imports; `from a import b` gives `a.b`."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _longest_known(target: str, modules: Iterable[str]) -> str | None:
    """The module that an imported name belongs to."""
    while target and target not in modules:
        target = target.rpartition(".")[0]
    return target or None
