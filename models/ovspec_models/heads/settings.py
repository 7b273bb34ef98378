"""Settings of a head's config.json: its graph follows them, they change nothing, or it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ovspec_models.folder.shown import cut, shown

#: What a layer is made by; `HeadCheckpoint.shape` reads it.
OF_LAYERS = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters"),
)
#: Further settings of layers, each with the values that mean what the graphs compute.
AS_COMPUTED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "qkv_bias": (False,),
    "partial_rotary_factor": (1.0, 1),
    "use_sliding_window": (False,),
}
_OF_ROPE = (
    *("rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "low_freq_factor"),
    *("high_freq_factor", "original_max_position_embeddings"),
    # How images and videos count; the three positions of a text's token are the same.
    *("mrope_section", "mrope_interleaved"),
)
_FULL = "full_attention"
_WITHOUT_EFFECT = frozenset(
    (
        # Names, versions and formats.
        *("target_vocab_size", "target_model_type"),
        *("architectures", "model_type", "auto_map", "_name_or_path", "name_or_path", "_attn_implementation"),
        *("base_model_name_or_path", "transformers_version", "version", "_commit_hash", "torch_dtype"),
        *("dtype", "torchscript", "use_bfloat16", "attn_implementation", "tokenizer_class", "head_dtype"),
        *("speculators_model_type", "speculators_version", "speculators_config", "transformer_layer_config"),
        *("text_config", "has_no_defaults_at_init", "unsloth_version", "unsloth_fixed"),
        # Training.
        *("attention_dropout", "hidden_dropout", "embd_pdrop", "resid_pdrop", "initializer_range"),
        *("embed_requires_grad", "gradient_checkpointing", "pretraining_tp", "ttt_steps", "dropout_rate"),
        # Tokens, and how a whole model generates.
        *("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "vocab_size"),
        *("decoder_start_token_id", "bad_words_ids", "begin_suppress_tokens", "suppress_tokens"),
        *("forced_bos_token_id", "forced_eos_token_id", "do_sample", "early_stopping", "num_beams"),
        *("num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "typical_p"),
        *("repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
        *("num_return_sequences", "max_length", "min_length", "exponential_decay_length_penalty"),
        *("remove_invalid_values", "use_cache", "return_dict", "return_dict_in_generate", "output_scores"),
        *("output_attentions", "output_hidden_states", "cache_implementation"),
        # Of other tasks, and of encoders.
        *("id2label", "label2id", "problem_type", "finetuning_task", "task_specific_params", "prefix"),
        *("is_decoder", "is_encoder_decoder", "add_cross_attention", "cross_attention_hidden_size"),
        *("tie_encoder_decoder", "tf_legacy_loss", "pruned_heads", "chunk_size_feed_forward"),
        # The output layer is the checkpoint's own, or the target's.
        "tie_word_embeddings",
        # Which layers have a window; layer_types says it.
        "max_window_layers",
        # What `HeadInfo` reads, of which `ovspec export` writes some.
        *("target_num_layers", "num_target_layers", "target_hidden_size", "own_embedding", "own_output"),
        *("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids"),
    )
)


@dataclass(frozen=True, slots=True)
class HeadSettings:
    """What the graph of one kind of head follows of config.json.

    Attributes:
        read: settings that it is made by.
        values: further settings, each with the values that mean what it computes; `a.b` is b in the object a.
        inside: names in objects of config.json that it is made by, beside those of rotary positions.
    """

    read: tuple[str, ...] = OF_LAYERS
    values: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: AS_COMPUTED)
    inside: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def and_those(self, other: HeadSettings) -> HeadSettings:
        """These and the settings of a further part."""
        names = self.inside.keys() | other.inside.keys()
        inside = {name: (*self.inside.get(name, ()), *other.inside.get(name, ())) for name in names}
        return HeadSettings((*self.read, *other.read), {**self.values, **other.values}, inside)

    def check(self, folder: Path, config: Mapping[str, Any]) -> None:
        """Refuse a head with a setting that its graph would not follow.

        Args:
            folder: of the head.
            config: its config.json, with the sizes of its layers among its own settings.

        Raises:
            ValueError: it names the setting.
        """
        objects = {"rope_scaling": _OF_ROPE, "rope_parameters": _OF_ROPE, **self.inside}
        for name, value in config.items():
            if value is None or name in _WITHOUT_EFFECT:
                continue
            if name in objects and isinstance(value, dict):
                for inner, setting in value.items():
                    if setting is not None and inner not in objects[name]:
                        self._check_one(folder, f"{name}.{inner}", setting)
            elif name == "layer_types" and name not in self.read:
                if not isinstance(value, list) or any(kind != _FULL for kind in value):
                    _refuse(folder, name, value, f"only {_FULL!r} is known")
            elif name == "sliding_window" and name not in self.read:
                if config.get("use_sliding_window") is not False:
                    _refuse(folder, name, value, "only layers without a sliding window are known")
            else:
                self._check_one(folder, name, value)

    def _check_one(self, folder: Path, name: str, value: object) -> None:
        known = self.values.get(name)
        if known is not None and not any(type(value) is type(one) and value == one for one in known):
            _refuse(folder, name, value, f"expected {' or '.join(map(repr, dict.fromkeys(known)))}")
        if known is None and name not in self.read:
            _refuse(folder, name, value, "which is not known")


def _refuse(folder: Path, name: str, value: object, reason: str) -> None:
    raise ValueError(
        f"head '{folder}': {cut(name)} of config.json is {shown(value)}, {reason}, and the head might draft "
        "wrongly; take another head"
    )
