"""What a folder says of the head in it: its kind, and what it reads of the target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from ovspec_models.folder.json_file import are_names, read_json
from ovspec_models.folder.layer_windows import layer_windows
from ovspec_models.folder.shown import cut, shown
from ovspec_models.folder.sparse_verify import is_int

#: In the config.json of the package speculators, the kind of a head.
FORMAT = "speculators_model_type"
# Kinds that can't be drafted with, and why.
_UNKNOWN_KINDS = {
    "eagle": "versions 1 and 2 read the last state alone",
    "domino": "a recurrent layer corrects its blocks",
    "lilicorr": "a lattice corrects its blocks",
}
# Kinds by a name in the architecture of config.json, or in the options that optimum-intel writes into IR; the
# first that matches counts.
_KINDS = (
    *("eagle3", "dflash2", "dspark", "xpress", "domino", "lilicorr", "dflash", "medusa", "hydra", "mtp"),
    *("peagle", "eagle"),
)
# Where vLLM looks for the token of P-EAGLE's masks; the package speculators names it mask_token_id.
MASK_TOKENS = ("pard_token", "ptd_token_id")
# Forms of a kind that is exported and drafts as that kind does.
_FORMS = {"dspark": "dflash", "dflash2": "dflash", "xpress": "dflash", "peagle": "eagle3"}
#: Forms of DFlash with a head that corrects a place's logits by the tokens drafted before it.
CORRECTED = ("dspark", "dflash2", "xpress")
#: Kinds whose published config.json has no sizes; they are read from the weights.
_SIZES_IN_WEIGHTS = ("medusa", "hydra")
_TAIL_BYTES = 1 << 16
_MOST = 2**31 - 1
#: Tokens of a block, where a head drafts as many as are asked for.
ANY_NUMBER = _MOST
_AGAIN = "get the head again"
#: An MTP module as optimum-intel 2.2 writes it, into the folder of its target.
MTP_IR = "openvino_mtp_model.xml"
#: Keys of config.json that `ovspec export` adds.
TARGET_LAYERS, TARGET_SIZE = "target_num_layers", "target_hidden_size"
OWN_EMBEDDING, OWN_OUTPUT = "own_embedding", "own_output"
BOUNDARIES = "eagle_aux_hidden_state_layer_ids"
# Kinds that take the output layer of their target.
_SHARING = ("dflash", "mtp")
#: Norms that an EAGLE-3 head may have more than the paper's, or elsewhere.
NORMS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_BOUNDARIES_OF_DFLASH = "aux_hidden_state_layer_ids"
_DFLASH, _OUTPUTS_OF_LAYERS = "dflash_config", "target_layer_ids"
# Numbers of modules in the config.json of targets, Qwen's and DeepSeek's.
_MTP_MODULES = ("mtp_num_hidden_layers", "num_nextn_predict_layers")


def head_kind(folder: str | Path) -> str | None:
    """The kind of head that a folder holds, `None` for anything else, e.g. a draft model."""
    path = Path(folder)
    if (path / MTP_IR).is_file():
        return "mtp"
    xml, tail = path / "openvino_model.xml", b""
    if xml.is_file():
        with xml.open("rb") as file:
            file.seek(max(0, xml.stat().st_size - _TAIL_BYTES))
            tail = file.read()
    form = form_of(_config(path), tail)
    return form and _FORMS.get(form, form)


def form_of(config: dict[str, Any], tail: bytes = b"") -> str | None:
    """The kind of a head, or its form where the kind has several, e.g. `dspark` of `dflash`.

    Args:
        config: its config.json.
        tail: of its IR, if it has been exported.
    """
    if of_speculators(config):
        return str(config[FORMAT])
    architectures = config.get("architectures")
    said = str(architectures[0]).lower() if isinstance(architectures, list) and architectures else ""
    # Published Medusa and Hydra heads name no architecture.
    said += " ".join(kind for kind in _SIZES_IN_WEIGHTS if f"{kind}_num_heads" in config)
    said += " ".join(kind for kind in _KINDS if f"<{kind}_mode".encode() in tail)
    kind = next((kind for kind in _KINDS if kind in said), None)
    return "peagle" if kind == "eagle3" and any(name in config for name in MASK_TOKENS) else kind


def why_unknown(kind: str, known: Iterable[str]) -> str:
    """That a kind of head can't be drafted with, for messages.

    Args:
        kind: as of `head_kind`.
        known: those that can.
    """
    why = f" ({_UNKNOWN_KINDS[kind]})" if kind in _UNKNOWN_KINDS else ""
    return f"holds a head of the kind {kind!r}{why}, which is not known; known: {', '.join(known)}"


def checkpoint_kind(folder: str | Path) -> str | None:
    """The kind of head that a checkpoint holds, which may be one beside a target's own layers."""
    config = _config(Path(folder))
    return head_kind(folder) or ("mtp" if any(config.get(name) for name in _MTP_MODULES) else None)


@dataclass(frozen=True, slots=True)
class HeadInfo:
    """What config.json says of a head.

    Attributes:
        folder: of the head.
        kind: as `head_kind`.
        boundaries: of the target, whose states it reads; `None`: those that are usual for its kind.
        target_layers: layers of the target that it was made for; 0: unknown.
        target_hidden_size: of that target; 0: its checkpoint does not say it.
        vocab_size: of that target; likewise.
        own_embedding: whether it has an embedding of its own, and does not share the target's.
        norms: those of `NORMS` that its config.json asks for.
        block: of a head that drafts blocks, their tokens, the one before the draft counted, and the id that
            stands for a token to come; else `None`.
        samples_anchor: whether each token of a block gives the one behind it.
        correction: one of `CORRECTED`, if tokens drafted before change its logits; else empty.
        own_output: whether it has an output layer of its own, and does not share the target's.
        layer_windows: of a head that drafts blocks, how many tokens before a block each layer sees; 0: all.
        windows_causal: whether a row of a block sees those after it in no layer with a window.
        of_speculators: whether its config.json is in the form of the package speculators.
        verifier: that target's name in this form; empty: not said.
        verifier_architectures: its architectures, likewise.
    """

    folder: Path
    kind: str
    boundaries: tuple[int, ...] | None
    target_layers: int
    target_hidden_size: int
    vocab_size: int
    own_embedding: bool
    norms: frozenset[str] = frozenset()
    block: tuple[int, int] | None = None
    samples_anchor: bool = False
    correction: str = ""
    own_output: bool = False
    layer_windows: tuple[int, ...] = ()
    windows_causal: bool = False
    of_speculators: bool = False
    verifier: str = ""
    verifier_architectures: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: str | Path) -> HeadInfo:
        """Read config.json of a folder whose `head_kind` is one.

        Raises:
            ValueError: the folder holds no head, or its config.json can't be used.
        """
        path = Path(folder)
        kind, config = checkpoint_kind(path), _config(path)
        if kind is None:
            raise ValueError(f"'{path}' holds no head")
        hidden, form = config.get("hidden_size"), form_of(config) or kind
        return cls(
            folder=path,
            kind=kind,
            boundaries=boundaries_of(path, config),
            target_layers=_layers(path, config),
            target_hidden_size=_number(path, TARGET_SIZE, config.get(TARGET_SIZE) or hidden, kind),
            vocab_size=_number(path, "vocab_size", config.get("vocab_size"), kind),
            own_embedding=bool(config.get(OWN_EMBEDDING, False)),
            norms=norms_of(config),
            block=_block(path, config, form),
            samples_anchor=samples_anchor(config),
            correction=correction_of(config),
            own_output=_has_own_output(kind, config),
            layer_windows=layer_windows(path, config, of_speculators(config)) if kind == "dflash" else (),
            windows_causal=windows_causal(config),
            of_speculators=of_speculators(config),
            **_verifier(path, config),
        )

    def check_target(
        self, hidden_size: int, layers: int, vocab_size: int, architectures: Sequence[str]
    ) -> None:
        """Refuse a target that the head was not made for.

        Args:
            hidden_size, layers, vocab_size, architectures: of the target; no architectures: not said.

        Raises:
            ValueError: it names what differs.
        """
        pairs = (
            ("hidden size", self.target_hidden_size or hidden_size, hidden_size),
            ("vocabulary", self.vocab_size or vocab_size, vocab_size),
            ("number of layers", self.target_layers or layers, layers),
        )
        for name, made_for, found in pairs:
            if made_for != found:
                raise ValueError(
                    f"'{self.folder}' is a head for another target: its {name} is {made_for}, this target's "
                    f"{found}; take the head that was trained for this target"
                )
        beyond = [boundary for boundary in self.boundaries or () if boundary > layers + 1]
        if beyond:
            raise ValueError(
                f"'{self.folder}' is a head for another target: it reads boundary {beyond[0]}, this target "
                f"of {layers} layers has 0 to {layers + 1}; take the head that was trained for this target"
            )
        made_with = self.verifier_architectures
        if made_with and architectures and not {*map(_family, made_with)} & {*map(_family, architectures)}:
            name = f" ({cut(self.verifier)})" if self.verifier else ""
            raise ValueError(
                f"'{self.folder}' is a head for another target: its verifier is a {cut(made_with[0])}{name}, "
                f"this target a {cut(architectures[0])}; take the head that was trained for this target"
            )


def _family(architecture: str) -> str:
    """An architecture without what it is used for: a text model may be a part of one that reads pictures."""
    return architecture.removesuffix("ForCausalLM").removesuffix("ForConditionalGeneration")


def _verifier(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Name and architectures of the target that a head of speculators was trained with."""
    said = _nested(_nested(config, "speculators_config"), "verifier")
    name, architectures = said.get("name_or_path") or "", said.get("architectures") or []
    if not isinstance(name, str) or not are_names(architectures):
        raise ValueError(
            f"{folder / 'config.json'}: the head's verifier is {shown(name)} of the architectures "
            f"{shown(architectures)}, expected a name and a list of names; {_AGAIN}"
        )
    return {"verifier": name, "verifier_architectures": tuple(architectures)}


def has_own_tokens(config: dict[str, Any]) -> bool:
    """Whether a head drafts tokens of its own by its config.json, and not those of its target."""
    return config.get("draft_vocab_size") not in (None, config.get("vocab_size"))


def correction_of(config: dict[str, Any]) -> str:
    """One of `CORRECTED` by a head's config.json; empty: nothing follows its logits."""
    form = form_of(config)
    confident = block_settings(config).get("enable_confidence_head", True) is not False
    if form == "dspark" and is_pure(config) and not confident:
        return ""
    return form if form in CORRECTED else ""


def is_pure(config: dict[str, Any]) -> bool:
    """Whether a DSpark head's config.json says that it drafts as DFlash, without a Markov head."""
    rank = block_settings(config).get("markov_rank")
    return is_int(rank) and rank == 0


def _has_own_output(kind: str, config: dict[str, Any]) -> bool:
    """Most have one unless their export says otherwise, some kinds if it says so or for their own tokens."""
    said = config.get(OWN_OUTPUT)
    return said is not False if kind not in _SHARING else said is True or has_own_tokens(config)


def samples_anchor(config: dict[str, Any]) -> bool:
    """Whether each token of a block gives the one behind it by a head's config.json."""
    said = config.get("sample_from_anchor")
    return form_of(config) == "dspark" if said is None else said is True


def of_speculators(config: dict[str, Any]) -> bool:
    """Whether a head's config.json is in the form of the package speculators."""
    return isinstance(config.get(FORMAT), str)


def windows_causal(config: dict[str, Any]) -> bool:
    """Whether a row sees none that is behind it in layers with windows by a head's config.json."""
    said = config.get("sliding_window_non_causal")
    return form_of(config) != "dflash2" if said is None else said is False


def boundaries_of(folder: Path, config: dict[str, Any]) -> tuple[int, ...] | None:
    """The boundaries that a head's config.json names, if it names any.

    Raises:
        ValueError: they are no numbers.
    """
    named = next((name for name in (BOUNDARIES, _BOUNDARIES_OF_DFLASH) if config.get(name)), None)
    if named:
        ids = config[named]
    else:
        # Here a number means the output of that layer, and so the boundary after it.
        outputs = _nested(config, "eagle_config").get(BOUNDARIES)
        outputs = outputs or _nested(config, _DFLASH).get(_OUTPUTS_OF_LAYERS)
        if form_of(config) == "dspark":
            outputs = outputs or config.get(_OUTPUTS_OF_LAYERS)
        ids = [number + 1 for number in outputs] if _are_numbers(outputs) else outputs
    if not ids:
        return None
    if not _are_numbers(ids):
        raise ValueError(
            f"{folder / 'config.json'}: the layers of the target that the head reads are {shown(ids)}, "
            f"expected numbers; {_AGAIN}"
        )
    return tuple(ids)


def norms_of(config: dict[str, Any]) -> frozenset[str]:
    """Those of `NORMS` that a head's config.json asks for, also in its `eagle_config`."""
    said = (config, _nested(config, "eagle_config"))
    return frozenset(name for name in NORMS if any(one.get(name) is True for one in said))


def _are_numbers(values: object) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(is_int(value) and 0 <= value < _MOST for value in values)


def _layers(folder: Path, config: dict[str, Any]) -> int:
    name = TARGET_LAYERS if config.get(TARGET_LAYERS) else "num_target_layers"
    return _number(folder, name, config.get(name), "") if config.get(name) else 0


def block_settings(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json with what its `dflash_config` says among its own settings."""
    return {**config, **_nested(config, _DFLASH)}


def block_of(folder: Path, config: dict[str, Any]) -> tuple[int, int]:
    """Tokens of the blocks that a head drafts, the one before the draft counted, and the mask token.

    Raises:
        ValueError: config.json does not say them.
    """
    said = block_settings(config)
    size, token = said.get("block_size"), said.get("mask_token_id")
    if not is_int(size) or size < 2 or not is_int(token) or token < 0:
        raise ValueError(
            f"{folder / 'config.json'}: block_size is {shown(size)} and mask_token_id {shown(token)}, "
            "expected at least 2 and a token; get the head again"
        )
    return int(size), int(token)


def masks_of(folder: Path, config: dict[str, Any]) -> tuple[int, int]:
    """As `block_of`, of a P-EAGLE head: as many tokens as are asked for where vLLM is told their number.

    Raises:
        ValueError: config.json does not say them.
    """
    where = folder / "config.json"
    drafted: object = ANY_NUMBER - 1
    if of_speculators(config):
        methods = _nested(config, "speculators_config").get("proposal_methods")
        method = methods[0] if isinstance(methods, list) and methods else None
        drafted = method.get("speculative_tokens") if isinstance(method, dict) else None
    if not is_int(drafted) or not 1 <= drafted < _MOST:
        raise ValueError(f"{where}: speculative_tokens is {shown(drafted)}, expected at least 1; {_AGAIN}")
    tokens = {name: config[name] for name in ("mask_token_id", *MASK_TOKENS) if config.get(name) is not None}
    first, *others = tokens.values() or (None,)
    if not is_int(first) or first < 0 or any(other != first for other in others):
        said = " and ".join(f"{name} is {shown(value)}" for name, value in tokens.items())
        expected = "expected one token that stands for those to come"
        raise ValueError(f"{where}: {said or 'no mask_token_id'}, {expected}; {_AGAIN}")
    return drafted + 1, first


def _block(folder: Path, config: dict[str, Any], form: str) -> tuple[int, int] | None:
    if form == "peagle":
        return masks_of(folder, config)
    return block_of(folder, config) if _FORMS.get(form, form) == "dflash" else None


def _nested(config: dict[str, Any], name: str) -> dict[str, Any]:
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def _config(folder: Path) -> dict[str, Any]:
    try:
        return with_layer_sizes(read_json(folder / "config.json", _AGAIN))
    except ValueError:
        return {}  # `ModelInfo.read` says what is wrong


def with_layer_sizes(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json with the sizes of the head's layers, which may lie in an object of their own."""
    return {**_nested(config, "text_config"), **_nested(config, "transformer_layer_config"), **config}


def _number(folder: Path, name: str, value: object, kind: str) -> int:
    if value is None and kind in _SIZES_IN_WEIGHTS:
        return 0
    if not is_int(value) or not 1 <= value <= _MOST:
        raise ValueError(
            f"{folder / 'config.json'}: {name} is {shown(value)}, expected a positive integer; {_AGAIN}"
        )
    return value
