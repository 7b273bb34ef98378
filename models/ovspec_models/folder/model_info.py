"""Facts about a folder of OpenVINO IR: shape of the model, files, size of its KV cache."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ovspec_models.folder.config import CONFIG_NAME, ModelSection, OvspecConfig
from ovspec_models.folder.folder_check import check_model_folder
from ovspec_models.folder.graph_files import graph_of, weight_bytes
from ovspec_models.folder.ir_facts import IrFacts
from ovspec_models.folder.json_file import are_names, read_json
from ovspec_models.folder.rope_scaling import scaled_positions, why_no_more
from ovspec_models.folder.shown import shown
from ovspec_models.folder.sparse_verify import is_int
from ovspec_models.folder.unpaged_types import UNPAGED
from ovspec_models.folder.weight_sizes import WeightSizes

# Names of the same value in the config.json of different families, the usual one first.
_ALIASES: dict[str, tuple[str, ...]] = {
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "multi_query_group_num"),
    "head_dim": ("head_dim", "kv_channels"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "sliding_window_pattern": ("sliding_window_pattern",),
    "max_position_embeddings": (
        *("max_position_embeddings", "n_positions", "n_ctx", "seq_length"),
        *("max_seq_len", "max_sequence_length", "model_max_length"),
    ),
}
# Sizes for the memory plan; other names than these count as unknown.
_COUNTS: dict[str, tuple[str, ...]] = {
    "hidden_size": _ALIASES["hidden_size"],
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim"),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "num_experts_per_tok": ("num_experts_per_tok", "num_experts_per_token"),
    "moe_intermediate_size": ("moe_intermediate_size", "intermediate_size"),
}
_WINDOW_PATTERNS = {"gemma2": 2, "gemma3_text": 6}
_WINDOWED_TYPES = ("mistral", "mixtral", "phi3", "phimoe", "qwen3_moe", "starcoder2")
_WITHOUT_CACHE = ("mamba", "linear_attention", "conv")
_BYTES = {"f32": 4, "f16": 2, "bf16": 2}  # of a value in the cache
_VALUE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}  # of a weight
_AGAIN = "export the model again: `ovspec export -m ... OUT`"
# No model has so many: a number that is damaged would fill the memory.
_MOST, _MOST_OF_ALL = {"num_hidden_layers": 10_000}, 2**31 - 1
_BLOCK_SIZE = 32  # tokens per KV cache block of the CPU plugin
_IR_NAMES = {
    "f64": "fp64",
    "f32": "fp32",
    "f16": "fp16",
    "bf16": "bf16",
    "u8": "int8",
    "i8": "int8",
    "u4": "int4",
    "i4": "int4",
    # Formats that ovspec does not export; other tools do.
    "nf4": "nf4",
    "f4e2m1": "fp4",
    "f8e4m3": "fp8",
    "f8e5m2": "fp8",
}
_EXPERTS_COPIED = ("gpt_oss",)  # into the order that SparseMoE reads
_SHAPE = (
    *("model_type", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
    "vocab_size",
)
_QUANTISED = ("int4", "nf4", "fp4", "int8", "fp8")  # the fewest bits first


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts about one model folder.

    ``weight_bytes`` is the size of its text model's weights. ``vocab_size`` is the model's, which may be
    padded past the tokenizer's. ``max_position_embeddings`` counts the scaling of rotary embeddings; it is
    ``None`` where config.json states no limit, as in families with ALiBi. ``why_no_more_positions`` says why
    texts end there where the model's scaling goes on. ``eos_token_ids`` are those of config.json, empty
    where it names none. ``layer_windows`` is the sliding window of every layer with a cache, 0 for none;
    ``full_kv_heads`` and ``full_head_dim`` are the sizes of its layers without a window where these have
    others (Gemma 4), else 0;
    ``num_kv_shared_layers`` counts the last layers, which read the caches of earlier ones.
    ``hidden_size`` to ``moe_intermediate_size`` are 0 where config.json says nothing. ``state_values``:
    numbers that its other layers hold of a text of any length. ``architectures``: transformers' names.
    ``shared_bytes``: weights of other parts, or of another folder, that it computes with too.
    """

    folder: Path
    model_type: str
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int | None
    eos_token_ids: frozenset[int]
    layer_windows: tuple[int, ...]
    num_kv_shared_layers: int
    full_kv_heads: int
    full_head_dim: int
    weight_bytes: int
    hidden_size: int
    intermediate_size: int
    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    state_values: int
    has_tokenizer: bool
    has_detokenizer: bool
    architectures: tuple[str, ...] = ()
    shared_bytes: int = 0
    why_no_more_positions: str = ""

    @classmethod
    def read(cls, folder: str | Path) -> ModelInfo:
        """Read ``config.json`` and look at the files of `folder`; nothing is compiled.

        Raises ValueError, in one line with the remedy, when the folder is missing, holds no OpenVINO model,
        holds a Hugging Face checkpoint that was not exported, or has a config.json that cannot be used.
        """
        path = Path(folder)
        check_model_folder(path)
        shape = read_shape(path)
        return cls(
            folder=path,
            weight_bytes=weight_bytes(path),
            has_tokenizer=(path / "openvino_tokenizer.xml").is_file(),
            has_detokenizer=(path / "openvino_detokenizer.xml").is_file(),
            **shape,
        )

    @property
    def num_kv_layers(self) -> int:
        """Layers with a KV cache of their own."""
        return len(self.layer_windows)

    @property
    def kv_shapes(self) -> list[tuple[int, int]]:
        """Heads of keys and values, and their size, of every layer with a cache."""
        own = (self.num_key_value_heads, self.head_dim)
        full = (self.full_kv_heads or own[0], self.full_head_dim or own[1])
        return [own if window else full for window in self.layer_windows]

    @property
    def is_hybrid(self) -> bool:
        """Whether some layers keep a state of the text instead of keys and values."""
        return self.num_kv_layers + self.num_kv_shared_layers < self.num_hidden_layers

    def kv_cache_bytes_per_token(
        self,
        precision: str,
        key_cache_quant_mode: str = "BY_CHANNEL",
        key_group: int = 0,
        value_group: int = 0,
    ) -> int:
        """Return the bytes of keys and values, all layers together, that one token takes in the cache.

        `precision`: ``f32``, ``f16``, ``bf16`` or ``u8``. `key_cache_quant_mode` counts for ``u8`` only:
        ``BY_CHANNEL`` (the CPU plugin's default: 8 rows of scales and zero points per 32 keys) or
        ``BY_TOKEN`` (8 bytes per key). Values are quantised by token in both. `key_group`, `value_group`:
        numbers that share such 8 bytes where keys or values are quantised by token; 0: all of a head.
        ValueError for other names.
        """
        if key_cache_quant_mode not in ("BY_CHANNEL", "BY_TOKEN"):
            raise ValueError(
                f"key_cache_quant_mode is {key_cache_quant_mode!r}, expected 'BY_CHANNEL' or 'BY_TOKEN'"
            )
        values = sum(heads * size for heads, size in self.kv_shapes)
        if precision in _BYTES:
            return 2 * values * _BYTES[precision]
        if precision != "u8":
            raise ValueError(f"precision is {precision!r}, expected 'f32', 'f16', 'bf16' or 'u8'")
        keys, with_scales = (
            values + 8 * sum(heads * -(-size // (group or size)) for heads, size in self.kv_shapes)
            for group in (key_group, value_group)
        )
        if key_cache_quant_mode == "BY_TOKEN":
            return keys + with_scales
        block = values * (_BLOCK_SIZE + 8) + with_scales * _BLOCK_SIZE
        return -(-block // _BLOCK_SIZE)

    def weight_sizes(self) -> WeightSizes:
        """Return the bytes of the weights by what becomes of them; read from the XML, nothing is compiled."""
        in_place = 0 if self.model_type in _EXPERTS_COPIED else self.num_experts
        sizes = WeightSizes.read(
            self.folder, self.vocab_size, self.hidden_size, self.intermediate_size, in_place
        )
        return replace(sizes, total=sizes.total + self.shared_bytes)

    def output_bytes(self) -> int:
        """Return the bytes of the output layer, which has 8 bits where others have fewer."""
        return self.vocab_size * self.hidden_size * _VALUE_BYTES.get(self.weight_format(), 1)

    def section(self, source: str, weight_format: str | None = None) -> ModelSection:
        """Return the model section of an ``ovspec_config.json``; the weight format is read unless given."""
        values: dict[str, Any] = {"source": source, "weight_format": weight_format or self.weight_format()}
        same = [entry.name for entry in fields(ModelSection) if entry.name not in values]
        return ModelSection(**values, **{name: getattr(self, name) for name in same})

    def differs_from(self, section: ModelSection) -> str:
        """Return the first part of the shape in which a model section is another model's; else nothing."""
        return next((name for name in _SHAPE if getattr(section, name) != getattr(self, name)), "")

    def check_calibration(self, config: OvspecConfig | None) -> None:
        """Refuse amounts that were calibrated for a model of another shape (ValueError, in one line)."""
        if config is not None and config.verify is not None and (name := self.differs_from(config.model)):
            held, own = shown(getattr(config.model, name)), shown(getattr(self, name))
            raise ValueError(
                f"{self.folder / CONFIG_NAME}: its amounts are calibrated for another model, with {name} "
                f"{held} and not {own}; calibrate this one, or set verify to null"
            )

    def weight_format(self) -> str:
        """Return the format of the weights: int4, int8, bf16, fp16 or fp32; read from the XML alone.

        Weights of our own operations are bytes there; a folder that holds such says their format itself.
        """
        config = OvspecConfig.load(self.folder)
        if config is not None and config.operations:
            return config.model.weight_format
        return weight_format_of(graph_of(self.folder))


def read_shape(folder: Path) -> dict[str, Any]:
    """Return the shape fields of ModelInfo from ``folder/config.json`` (ValueError if it cannot be used)."""
    path = folder / "config.json"
    return shape_of(read_json(path, _AGAIN), path)


def shape_of(config: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the same of a configuration that was read, with the `path` of its file for messages."""
    nested = config.get("text_config") or config.get("llm_config")
    text: dict[str, Any] = {**config, **nested} if isinstance(nested, dict) else config
    # A checkpoint with its own code may name none.
    model_type = text.get("model_type", "unknown")
    if not isinstance(model_type, str):
        raise ValueError(f"{path}: model_type is {shown(model_type)}, expected text; export the model again")
    if why := UNPAGED.get(model_type):
        raise ValueError(
            f"{path}: models of type {model_type!r} can't be served: {why}; run them with transformers"
        )
    if text.get("use_bidirectional_attention") is True:
        raise ValueError(
            f"{path}: use_bidirectional_attention is true: every token attends to those behind it too, so "
            "the model gives embeddings and no text; take a text generation model"
        )
    types = text.get("layer_types")
    if isinstance(types, list) and types and all(kind in _WITHOUT_CACHE for kind in types):
        raise ValueError(
            f"{path}: all layers are of the kind {shown(types[0])}, and models without attention have no "
            "keys and values to page or to read sparsely; run the model with transformers"
        )
    layers, heads = _number(path, text, "num_hidden_layers"), _number(path, text, "num_attention_heads")
    head_dim = _number(path, text, "head_dim", 0)
    if head_dim == 0:
        head_dim = _number(path, text, "hidden_size") // heads
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": _kv_heads(path, text, heads),
        "head_dim": head_dim,
        "vocab_size": _number(path, text, "vocab_size"),
        **_positions(path, text, model_type),
        "eos_token_ids": _eos_token_ids(path, config, text),
        "layer_windows": _layer_windows(path, text, model_type, layers),
        "num_kv_shared_layers": _count(text, "num_kv_shared_layers"),
        "full_kv_heads": _count(text, "num_global_key_value_heads") if text.get("attention_k_eq_v") else 0,
        "full_head_dim": _count(text, "global_head_dim"),
        **{name: _count(text, *names) for name, names in _COUNTS.items()},
        "state_values": _state_values(text),
        "architectures": tuple(given) if are_names(given := config.get("architectures")) else (),
    }


def weight_format_of(xml: Path) -> str:
    """Return the format of an IR file's weights: int4, int8, bf16, fp16, fp32; of others nf4, fp4, fp8.

    It is a format of 4 bits when any matrix has it (NNCF leaves embedding and head in 8), else one of 8 when
    any has, else the format of most weights. Vectors (norms, biases) and scales do not count.

    Raises ValueError, in one line that names the file, when it is cut short, no XML, or holds no weights.
    """
    facts = IrFacts.read(xml)
    if facts.fault is not None:
        raise ValueError(f"{xml}: cannot be read as OpenVINO IR ({facts.fault}); {_AGAIN}")
    counts: Counter[str] = Counter()
    for constant in facts.constants:
        name = _IR_NAMES.get(constant.element_type)
        if name is not None and len(constant.shape) >= 2 and constant.shape[-1] > 1:
            counts[name] += math.prod(constant.shape)
    if not counts:
        raise ValueError(f"{xml}: holds no weights; {_AGAIN}")
    quantised = [name for name in _QUANTISED if name in counts]
    return quantised[0] if quantised else max(counts, key=lambda name: counts[name])


def _number(path: Path, config: dict[str, Any], name: str, default: int | None = None) -> int:
    value = _optional_number(path, config, name)
    if value is not None:
        return value
    if default is None:
        raise ValueError(f"{path}: {name} is missing; use a text generation model and export it again")
    return default


def _optional_number(path: Path, config: dict[str, Any], name: str) -> int | None:
    for key in _ALIASES[name]:
        value = config.get(key)
        if value is None:
            continue
        if not is_int(value) or not 0 < value <= (most := _MOST.get(name, _MOST_OF_ALL)):
            found = shown(value) if not is_int(value) or value <= 0 else f"above {most}"
            raise ValueError(f"{path}: {key} is {found}, expected a positive integer; export the model again")
        return value
    return None


def _positions(path: Path, text: dict[str, Any], model_type: str) -> dict[str, Any]:
    stated = _optional_number(path, text, "max_position_embeddings")
    try:
        return {
            "max_position_embeddings": scaled_positions(text, stated, model_type),
            "why_no_more_positions": why_no_more(text),
        }
    except ValueError as error:
        raise ValueError(f"{path}: {error}; correct it, or export the model again") from None


def _count(config: dict[str, Any], *names: str) -> int:
    values = (config.get(name) for name in names)
    return next((v for v in values if is_int(v) and 0 < v <= _MOST_OF_ALL), 0)


def _eos_token_ids(path: Path, config: dict[str, Any], text: dict[str, Any]) -> frozenset[int]:
    # The outer object first, unlike the shape: transformers writes text_config's own default beside it
    # (Gemma 3: 1 in text_config, [1, 106] outside, where 106 ends the turn), and reads them in this order.
    value = config.get("eos_token_id")
    if value is None:
        value = text.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(is_int(i) and i >= 0 for i in ids):
        raise ValueError(
            f"{path}: eos_token_id is {shown(value)}, expected a token id >= 0, a list of them, or null; "
            "correct it, or export the model again"
        )
    return frozenset(ids)


def _kv_heads(path: Path, text: dict[str, Any], heads: int) -> int:
    # GPT-BigCode and Falcon's old architecture have multi_query instead of a number of KV heads; it overrides
    # other fields. Falcon's new architecture repeats the KV heads of its weights before it caches them.
    multi_query = text.get("multi_query") is True
    if text.get("model_type") == "falcon":
        return 1 if multi_query and not text.get("new_decoder_architecture") else heads
    return _number(path, text, "num_key_value_heads", 1 if multi_query else heads)


def _state_values(text: dict[str, Any]) -> int:
    """Of all layers of gated delta nets or Mamba: a matrix per head, and the rows before a convolution's.

    LFM2's layers have only the latter.
    """
    given = text.get("layer_types")
    types = given if isinstance(given, list) else []
    heads, key_heads = _count(text, "linear_num_value_heads"), _count(text, "linear_num_key_heads")
    key, value = _count(text, "linear_key_head_dim"), _count(text, "linear_value_head_dim")
    channels = 2 * key_heads * key + heads * value
    delta = heads * key * value + channels * _count(text, "linear_conv_kernel_dim")
    convolution = _count(text, "hidden_size") * _count(text, "conv_L_cache")
    inner, size = _count(text, "mamba_expand") * _count(text, "hidden_size"), _count(text, "mamba_d_state")
    rows = (inner + 2 * _count(text, "mamba_n_groups") * size) * _count(text, "mamba_d_conv")
    mamba = types.count("mamba") * (inner * size + rows)
    return types.count("linear_attention") * delta + types.count("conv") * convolution + mamba


def _layer_windows(path: Path, text: dict[str, Any], model_type: str, layers: int) -> tuple[int, ...]:
    types, given = text.get("layer_types"), text.get("sliding_window")
    window = given if is_int(given) and given > 0 else 0
    if isinstance(types, list):
        shared = _count(text, "num_kv_shared_layers")
        own = types[: len(types) - shared] if shared < len(types) else types
        kept = [t for t in own if isinstance(t, str) and t.endswith("attention")]
        windows = [window if t == "sliding_attention" else 0 for t in kept if not t.startswith("linear")]
        return tuple(windows) or (0,) * layers
    if text.get("use_sliding_window") is False:
        return (0,) * layers
    # Configurations without layer_types: Gemma's families alternate by their own rules; in others all layers
    # have the window.
    pattern = _optional_number(path, text, "sliding_window_pattern") or _WINDOW_PATTERNS.get(model_type)
    if pattern is None:
        return (window if model_type in _WINDOWED_TYPES else 0,) * layers
    return tuple(window if (layer + 1) % pattern else 0 for layer in range(layers))
