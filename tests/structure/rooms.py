"""The order in which packages (floors) and their rooms may import each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from structure.import_graph import Arrows, circles, longest_chains, merge, read_imports

ROOT = Path(__file__).parents[2]

# Each package, top first: a package imports only those after it.
FLOORS = {
    "ovspec": ROOT / "ovspec",
    "ovspec_models": ROOT / "models" / "ovspec_models",
    "ovspec_transforms": ROOT / "transforms" / "ovspec_transforms",
    "ovspec_ops": ROOT / "custom_ops" / "ovspec_ops",
}
OPERATIONS = ("block_select", "cache_write", "key_summary", "verify_attention", "moe", "gated_mlp", "linear")
# Rooms of each package, top first: a room imports rooms of its own line or of lines below. A room is a
# folder, or a module directly in the package; "" is the package's `__init__`, which a room below must not
# import.
ROOMS: Mapping[str, Sequence[tuple[str, ...]]] = {
    "ovspec": (
        ("cli.bench",),
        ("cli", "__main__"),
        ("cli.options",),
        ("serve.cluster",),
        ("serve",),
        ("serve.output",),
        ("serve.requests",),
        ("bench", "calibrate", "train"),
        ("eval", "bundle", "bundle.files", "rag"),
        ("",),
        ("pipeline",),
        ("pipeline.models",),
        ("engine",),
        ("engine.verify",),
        ("engine.requests",),
        ("drafters", "vision"),
        ("generation", "memory"),
        ("generation.grammars",),
        ("proofs",),
        ("runner",),
        ("stock",),
        ("graphs",),
        ("operations",),
        ("passes",),
        ("cache",),
        ("adapters",),
        ("devices",),
        ("sampling", "modes", "schedule"),
        ("errors",),
    ),
    "ovspec_models": (("heads",), ("synthetic",), ("sources",), ("",), ("export",), ("folder",)),
    "ovspec_transforms": (
        ("",),
        ("experts", "ffn", "heads", "layers"),
        ("attention", "linear", "pictures"),
        ("replace_subgraphs",),
        ("graph", "weights"),
        ("report", "errors"),
    ),
    "ovspec_ops": (("self_check",), ("",), ("decoder_layers",), OPERATIONS, ("loader", "common")),
}
# Modules of a room that import one another in a chain, at most.
LONGEST_CHAIN = 6
# Packages whose modules outside folders form one room.
FLAT = ("ovspec_models",)


class Structure:
    """Modules of the installed packages, the rooms they lie in, and the imports between them."""

    def __init__(
        self,
        floors: Mapping[str, Path] = FLOORS,
        rooms: Mapping[str, Sequence[tuple[str, ...]]] = ROOMS,
        not_installed: Sequence[Path] = (ROOT / "tools", ROOT / "tests"),
    ) -> None:
        self.floors = list(floors)
        self.modules, self.outside = read_imports(floors)
        self._flat = {name for name in FLAT if name in floors}
        self._levels = {
            f"{floor}.{room}".rstrip("."): level
            for floor, lines in rooms.items()
            for level, line in enumerate(lines)
            for room in line
        }
        folders = {
            ".".join((floor, *path.relative_to(root).parts))
            for floor, root in floors.items()
            for path in root.rglob("*")
            if path.is_dir()
        }
        self.room_of = {module: self._room(module, folders) for module in self.modules}
        self.rooms: Arrows = merge(self.modules, self.room_of)
        self._not_installed = {folder.name for folder in not_installed} | {
            path.stem
            for folder in not_installed
            for path in folder.rglob("*")
            if path.suffix in ("", ".py") and "node_modules" not in path.parts
        }

    def _room(self, module: str, folders: set[str]) -> str:
        room = module
        while room not in folders and "." in room:
            room = room.rpartition(".")[0]
        floor, *rest = module.split(".")
        return room if room != floor or floor in self._flat else ".".join((floor, *rest[:1]))

    def faults(self) -> Iterator[str]:
        """One line for each import or room that breaks a rule."""
        for room in sorted(set(self.rooms) - set(self._levels)):
            yield f"{room} has no place in the order: add it to ROOMS in tests/structure/rooms.py"
        for module, targets in self.modules.items():
            yield from (
                f"{module} imports {target}, which is above it"
                for target in sorted(targets)
                if self._up(module, target)
            )
        for module, names in self.outside.items():
            yield from (
                f"{module} imports {name}, which is not installed"
                for name in sorted(names & self._not_installed)
            )
        if not circles(self.modules):
            for room, chain in longest_chains(self.modules, self.room_of).items():
                if len(chain) > LONGEST_CHAIN:
                    shown = " -> ".join(chain)
                    yield f"{room}: a chain of {len(chain)} modules, {LONGEST_CHAIN} at most: {shown}"
        for kind, arrows in (("rooms", self.rooms), ("modules", self.modules)):
            yield from (f"a circle of {kind}: {', '.join(circle)}" for circle in circles(arrows))

    def _up(self, module: str, target: str) -> bool:
        floors = [self.floors.index(name.split(".")[0]) for name in (module, target)]
        if floors[0] != floors[1]:
            return floors[0] > floors[1]
        levels = [self._levels.get(self.room_of[name]) for name in (module, target)]
        return None not in levels and levels[0] > levels[1]  # type: ignore[operator]

    def summary(self) -> str:
        """Numbers of rooms, modules, arrows and circles, and each room's arrows."""

        def count(arrows: Arrows) -> str:
            return f"{sum(map(len, arrows.values()))} arrows, {len(circles(arrows))} circles"

        chains = longest_chains(self.modules, self.room_of)
        deepest = max(chains, key=lambda room: len(chains[room]))
        lines = [
            f"longest chain of a room: {len(chains[deepest])} modules of {deepest}",
            f"{len(self.rooms)} rooms, {count(self.rooms)}",
            f"{len(self.modules)} modules, {count(self.modules)}",
            *(f"  {room} -> {', '.join(sorted(targets)) or '-'}" for room, targets in self.rooms.items()),
        ]
        return "\n".join(lines)
