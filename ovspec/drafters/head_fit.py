"""Whether a head's graph fits its target, and what it takes of it."""

from __future__ import annotations

from ovspec.runtime.compile import read_model
from ovspec.runtime.devices import openvino_core
from ovspec_models import ModelInfo
from ovspec_models.head_info import HeadInfo
from ovspec_transforms import HeadParts, share_embedding, share_output


def check_states(info: HeadInfo, parts: HeadParts, target: ModelInfo, boundaries: int) -> None:
    """Refuse a head that reads other states than the target's.

    Raises:
        ValueError: it says what both are.
    """
    states = boundaries * target.hidden_size
    if parts.read != states:
        raise ValueError(
            f"'{info.folder}' is a head for another target: it reads {parts.read} numbers of a token, "
            f"the target's {boundaries} boundaries of hidden size {target.hidden_size} give {states}"
        )


def check_size(info: HeadInfo, parts: HeadParts, shared: str, size: int) -> None:
    """Refuse a head that computes with rows of another size than a part that it shares.

    Args:
        info: of the head.
        parts: of its graph.
        shared: what the part is.
        size: of the part's rows.

    Raises:
        ValueError: it says what both are.
    """
    if size != parts.size:
        raise ValueError(
            f"'{info.folder}' is a head for another target: its hidden size is {parts.size}, the {shared}'s "
            f"{size}"
        )


def share_with_target(info: HeadInfo, parts: HeadParts, target: ModelInfo) -> None:
    """Give a head the target's embedding and output layer.

    Raises:
        ValueError: they have another size than the head.
    """
    model = read_model(openvino_core(), target.folder)
    check_size(info, parts, "embedding", share_embedding(parts.head, model))
    check_size(info, parts, "output layer", share_output(parts.head, model))
