"""Whether a head's graph fits its target, and what it takes of it."""

from __future__ import annotations

import openvino as ov

from ovspec.devices.devices import openvino_core
from ovspec.graphs.compile import read_ir, read_model
from ovspec_models import ModelInfo
from ovspec_models.folder.head_info import HeadInfo
from ovspec_transforms import HeadParts, share_embedding, share_output

# Inputs of exported heads; of Hydra's, each head has two of its own, with its number.
_INPUTS = (
    *("input_ids", "inputs_embeds", "hidden_states", "attention_mask", "position_ids", "beam_idx"),
    *("block_rows", "given", "tokens", "correction"),
)
# What exporters write into IR: of themselves, and for plugins.
_FACTS = (
    *("OpenVINO Runtime", "Runtime_version", "conversion_parameters", "optimum", "runtime_options"),
    *("version", "nncf", "framework", "legacy_frontend", "MO_version", "is_new_api"),
)
# Names in the facts of a kind.
_OF_KIND = ("mask_token_id", "target_layer_ids", "block_size")


def read_head(info: HeadInfo) -> ov.Model:
    """The IR of a head, of which everything is known.

    Raises:
        ValueError: it can't be read, or it asks for something that this kind of head does not compute: a
            setting of config.json, an input or a fact of the IR.
    """
    # With the exports of all heads; a pipeline without a head starts sooner.
    from ovspec_models.heads import check_settings

    check_settings(info.folder, info.kind)
    model = read_ir(openvino_core(), info.folder / "openvino_model.xml")
    for port in model.inputs:
        name = port.get_any_name()
        if name.split(".")[0] not in _INPUTS:
            raise ValueError(
                f"'{info.folder}': the head has the input {name}, which is not known; take another head"
            )
    for name, value in model.get_rt_info().items():
        if name in _FACTS or name == f"{info.kind}_mode":
            continue
        inside = value.keys() if name == info.kind and hasattr(value, "keys") else ()
        unknown = [f"{name}.{inner}" for inner in inside if inner not in _OF_KIND] if inside else [name]
        if unknown:
            raise ValueError(
                f"'{info.folder}': openvino_model.xml says {unknown[0]} of the head, which is not known; "
                "take another head"
            )
    return model


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


def check_mask_token(info: HeadInfo, target: ModelInfo) -> None:
    """Refuse a head whose mask is no token of the target.

    Raises:
        ValueError: it says what both are.
    """
    assert info.block is not None
    if (token := info.block[1]) >= target.vocab_size:
        raise ValueError(
            f"'{info.folder}' is a head for another target: its mask_token_id is {token}, the target's "
            f"tokens are 0 to {target.vocab_size - 1}"
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
    """Give a head what it has not of its own: the target's embedding, its output layer.

    Raises:
        ValueError: they have another size than the head.
    """
    if info.own_embedding and info.own_output:
        check_size(info, parts, "embedding", parts.embedded)
        return
    model = read_model(openvino_core(), target.folder)
    embedded = parts.embedded if info.own_embedding else share_embedding(parts.head, model)
    check_size(info, parts, "embedding", embedded)
    if not info.own_output:
        check_size(info, parts, "output layer", share_output(parts.head, model))
