"""Whether openvino_genai reads a GGUF file, and the configuration that its metadata makes."""

from __future__ import annotations

import re
from typing import Any

from ovspec_models.folder.shown import cut, shown
from ovspec_models.sources.gguf_file import GgufFile

_FAMILIES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_MATRICES = ("Q4_0", "Q4_1", "Q4_K", "Q6_K", "Q8_0", "F16")
_VECTORS = ("F32", "F16")
_SPLITTERS = ("qwen2", "smollm")
# By which llama.cpp puts BOS in front of texts where a file does not say.
_BEGINNERS = ("llama3", "llama-v3", "llama-bpe")
# Tensors that the reader computes with.
_READ = re.compile(
    r"(token_embd|output|output_norm|blk\.\d+\.(attn_norm|ffn_norm|attn_q_norm|attn_k_norm))\.weight"
    r"|blk\.\d+\.(attn_q|attn_k|attn_v|attn_output|ffn_gate|ffn_up|ffn_down)\.(weight|bias)"
)
# In Llama's files the values of a head lie in another order: the reader undoes that for matrices only.
_REORDERED = re.compile(r"blk\.\d+\.attn_[qk](_norm\.weight|\.bias)")
_EXPORT = "export the checkpoint it was made from: `ovspec export -m ... OUT`"


def check_readable(file: GgufFile) -> None:
    """Refuse a file that openvino_genai's reader does not know, or would compute otherwise than it says.

    Raises:
        ValueError: in one line that names what the file has and what is known.
    """
    about = f"'{file.path}'"
    family = file.metadata.get("general.architecture")
    if not isinstance(family, str) or family not in _FAMILIES:
        named = "names no architecture" if family is None else f"is of the architecture {shown(family)}"
        raise ValueError(f"{about} {named}; those of {', '.join(_FAMILIES)} are read: {_EXPORT}")
    for tensor in file.tensors:
        known = _MATRICES if len(tensor.shape) > 1 else _VECTORS
        if tensor.type not in known:
            raise ValueError(
                f"{about}: {cut(tensor.name)} is of the type {tensor.type}; {', '.join(known)} are read: "
                f"take such a file of the model, or {_EXPORT}"
            )
    _check_tokenizer(file)
    for why in _unread(file, family):
        raise ValueError(f"{about} has {why}, which openvino_genai's reader leaves out: {_EXPORT}")


def _check_tokenizer(file: GgufFile) -> None:
    kind = file.metadata.get("tokenizer.ggml.model")
    if kind is None:
        raise ValueError(f"'{file.path}' has no tokenizer (tokenizer.ggml.model is missing); {_EXPORT}")
    if kind != "gpt2":
        raise ValueError(
            f"'{file.path}' has a tokenizer of the kind {shown(kind)}; those of the kind 'gpt2', byte-level "
            f"BPE, are read: {_EXPORT}"
        )
    for name in ("tokens", "merges", "token_type", "pre"):
        if f"tokenizer.ggml.{name}" not in file.metadata:
            raise ValueError(
                f"'{file.path}' has no whole tokenizer: tokenizer.ggml.{name} is missing; {_EXPORT}"
            )


def _unread(file: GgufFile, family: str) -> list[str]:
    """What a file has that the reader ignores, so that it would compute another model."""
    data, found = file.metadata, []
    if experts := data.get(f"{family}.expert_count"):
        found.append(f"{shown(experts)} experts")
    # llama.cpp takes a factor without a type as linear.
    factors = [data.get(f"{family}.rope.{name}") for name in ("scaling.factor", "scale_linear")]
    scaled = "linear" if any(factor not in (None, 0, 1) for factor in factors) else "none"
    if (kind := data.get(f"{family}.rope.scaling.type", scaled)) != "none":
        found.append(f"scaled rotary embeddings ({shown(kind)})")
    for name in (tensor.name for tensor in file.tensors):
        if not _READ.fullmatch(name):
            found.append(f"the tensor {cut(name)}")
        elif family == "llama" and _REORDERED.fullmatch(name):
            found.append(f"the tensor {cut(name)} in an order of its own")
    if data.get(f"{family}.attention.sliding_window"):
        found.append("a sliding window of attention")
    rotated = data.get(f"{family}.rope.dimension_count")
    if rotated is not None and rotated != _head_dim(file, family):
        found.append(f"rotary embeddings of {shown(rotated)} of {_head_dim(file, family)} values")
    return found


def warnings_of(file: GgufFile) -> list[str]:
    """What the user should know of a file that is read."""
    found, pre = list[str](), file.metadata["tokenizer.ggml.pre"]
    if pre not in _SPLITTERS:
        found.append(
            f"{file.path.name}: its tokenizer splits text by the rule {shown(pre)}; openvino_genai's reader "
            f"knows {' and '.join(_SPLITTERS)}, and takes a rule that is close for the others"
        )
    if file.metadata.get("tokenizer.ggml.add_bos_token", pre in _BEGINNERS):
        found.append(
            f"{file.path.name}: its tokenizer puts a token (BOS) in front of every text; openvino_genai's "
            "reader leaves it out, but where a chat template writes it"
        )
    return found


def config_of(file: GgufFile) -> dict[str, Any]:
    """The `config.json` of a file that `check_readable` let through.

    Raises:
        ValueError: a number is missing or can't be one.
    """
    family = str(file.metadata["general.architecture"])
    shapes = {tensor.name: tensor.shape for tensor in file.tensors}
    if "token_embd.weight" not in shapes:
        raise ValueError(f"'{file.path}' has no token_embd.weight: it holds no whole model; get it again")
    heads = _whole(file, f"{family}.attention.head_count")
    data = file.metadata
    return {
        "architectures": [_FAMILIES[family]],
        "model_type": family,
        "hidden_act": "silu",
        "hidden_size": _whole(file, f"{family}.embedding_length"),
        "intermediate_size": _whole(file, f"{family}.feed_forward_length"),
        "num_hidden_layers": _whole(file, f"{family}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _whole(file, f"{family}.attention.head_count_kv", heads),
        "head_dim": _head_dim(file, family),
        "vocab_size": shapes["token_embd.weight"][0],
        "max_position_embeddings": _whole(file, f"{family}.context_length"),
        "rms_norm_eps": data.get(f"{family}.attention.layer_norm_rms_epsilon"),
        "rope_theta": data.get(f"{family}.rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in shapes,
        **_special_ids(file),
    }


def generation_config_of(file: GgufFile) -> dict[str, Any]:
    """The `generation_config.json`: all tokens that end an answer."""
    ids = _special_ids(file)
    names = ("eos_token_id", "eot_token_id", "eom_token_id")
    ends = [file.metadata.get(f"tokenizer.ggml.{name}") for name in names]
    kept = list(dict.fromkeys(end for end in ends if isinstance(end, int)))
    return ids | ({"eos_token_id": kept} if len(kept) > 1 else {})


def _special_ids(file: GgufFile) -> dict[str, int]:
    named = {
        "bos_token_id": "bos_token_id",
        "eos_token_id": "eos_token_id",
        "pad_token_id": "padding_token_id",
    }
    found = {key: file.metadata.get(f"tokenizer.ggml.{name}") for key, name in named.items()}
    return {key: value for key, value in found.items() if isinstance(value, int)}


def _head_dim(file: GgufFile, family: str) -> int:
    length = file.metadata.get(f"{family}.attention.key_length")
    if length is not None:
        return _whole(file, f"{family}.attention.key_length")
    return _whole(file, f"{family}.embedding_length") // _whole(file, f"{family}.attention.head_count")


def _whole(file: GgufFile, name: str, default: int | None = None) -> int:
    value = file.metadata.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31:
        said = "is missing" if value is None else f"is {shown(value)}, expected a positive integer"
        raise ValueError(f"'{file.path}': {name} {said}; get the file again")
    return value
