"""Drafters, one file each, and the choice of one."""

from ovspec.drafters.assistant import AssistantDrafter
from ovspec.drafters.auto import AutoDrafter
from ovspec.drafters.build import Parts, build_drafter
from ovspec.drafters.drafter_choice import (
    NAMES,
    NONE,
    Assistant,
    Auto,
    DrafterChoice,
    LayerSkip,
    PromptLookup,
    SparseSelf,
    Suffix,
    UserChoice,
    parse_drafter,
)
from ovspec.drafters.layer_skip import LayerSkipDrafter
from ovspec.drafters.prompt_lookup import PromptLookupDrafter
from ovspec.drafters.sparse_self import SparseSelfDrafter
from ovspec.drafters.suffix import SuffixDrafter
from ovspec.drafters.user import ProposesTokens, UserDrafter

__all__ = [
    "NAMES",
    "NONE",
    "Assistant",
    "AssistantDrafter",
    "Auto",
    "AutoDrafter",
    "DrafterChoice",
    "LayerSkip",
    "LayerSkipDrafter",
    "Parts",
    "PromptLookup",
    "PromptLookupDrafter",
    "ProposesTokens",
    "SparseSelf",
    "SparseSelfDrafter",
    "Suffix",
    "SuffixDrafter",
    "UserChoice",
    "UserDrafter",
    "build_drafter",
    "parse_drafter",
]
